"""Event notifications: what happens in a broker, told to services that subscribed to it (EVT)."""
