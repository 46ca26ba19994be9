"""The gateway's second port: commands over rollouts and versions, who may give them, and what happens by itself."""
