"""Security, pure: the permissions of users; no sockets."""
