"""Event notifications: messages to services that subscribed to events in a broker (EVT)."""
