"""The profile of Hermes that a message is for."""

from __future__ import annotations

__all__ = ["ProfileError", "ProfilesOffError", "UnknownProfileError"]


class ProfileError(LookupError):
    """Hermes does not serve the profile. It would run the message as its root agent."""


class ProfilesOffError(ProfileError):
    def __init__(self, profile: str) -> None:
        super().__init__(
            f"this Hermes does not serve profiles, so not {profile!r}: "
            "gateway.multiplex_profiles is off"
        )


class UnknownProfileError(ProfileError):
    def __init__(self, profile: str) -> None:
        super().__init__(f"this Hermes has no profile {profile!r}")
