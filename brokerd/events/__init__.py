"""Event notifications: sends what happens in a broker to services that subscribed to it (EVT)."""
