"""Where clients' state is kept between rounds: on the device, on the host or on disk."""
