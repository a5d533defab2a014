"""The paper's theorems put to the test: measured errors beside their bounds."""
