"""The bridge in A2A's words: requests, tasks and their events."""
