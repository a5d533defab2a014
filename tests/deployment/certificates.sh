#!/bin/sh
# The keys and certificates of docs/deployment.md: certificates.sh ADDRESS NODE...
set -eu
address=$1; shift
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365 -subj "/CN=our CA" \
    -keyout ca.key -out ca.crt
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=$address" -keyout server.key -out server.csr
printf 'subjectAltName=IP:%s\nbasicConstraints=CA:FALSE\n' "$address" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile server.ext -out server.crt
for node in "$@"; do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$node"
done
chmod 600 ca.key server.key
