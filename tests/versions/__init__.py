"""The service at the oldest and the newest versions of everything it needs: `make versions`."""
