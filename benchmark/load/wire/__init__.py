"""HTTP/1.1 and server-sent events, read cheaply and timed by the kernel."""
