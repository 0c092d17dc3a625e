"""The internals of Hermes that the plugin relies on.

Hermes offers platforms a base class and hooks, and no public way to do the rest. What is private
to Hermes, or replaces a function of Hermes, is reached in this package and nowhere else. Each
function says where its names were seen in hermes-agent 0.19.0; `tests/plugin/test_hermes_api.py`
holds each of them against the installed Hermes.

Hermes's modules are imported in the functions, so that the plugin loads without Hermes.
"""

from __future__ import annotations

from molecule_hermes.plugin.hermes_api.agents import (
    context_of,
    has_agent,
    listen_to_reasoning,
    session_id_of,
    steer,
    take_unheard,
)
from molecule_hermes.plugin.hermes_api.cron import CronRun, current_cron_run, follow_cron
from molecule_hermes.plugin.hermes_api.gateway import (
    State,
    add_event_handler,
    has_session,
    remove_event_handler,
    report_connected,
    report_disconnected,
    report_fatal,
    session_key_of,
    state,
    widen_executor,
)
from molecule_hermes.plugin.hermes_api.handoffs import (
    Binding,
    NotBoundError,
    bind,
    has_answer,
    leave_requests,
    open_session,
    reopen_session,
    take_requests,
    unbind,
)
from molecule_hermes.plugin.hermes_api.jobs import live_jobs
from molecule_hermes.plugin.hermes_api.platforms import (
    NotConnectedError,
    Passing,
    has_passed,
    pass_on,
    take_back,
)
from molecule_hermes.plugin.hermes_api.policy import (
    call_first,
    current_platform,
    is_only_about_tools,
    is_subagent,
    tools_of,
    toolset_of,
)
from molecule_hermes.plugin.hermes_api.process import (
    lend_api_key,
    strip_from_tools,
    withhold_toolsets,
)
from molecule_hermes.plugin.hermes_api.profiles import (
    agent_key_of,
    answer_for_profile,
    has_profiles,
    profiles,
)
from molecule_hermes.plugin.hermes_api.questions import (
    clear_questions,
    open_approvals,
    resolve_approval,
    resolve_clarify,
)
from molecule_hermes.plugin.hermes_api.sessions import SessionError, open_sessions
from molecule_hermes.plugin.hermes_api.start_up import MODULES, probe_environment
from molecule_hermes.plugin.hermes_api.turns import (
    can_show_image,
    cost_of,
    current_message_id,
    enter_folder,
    hermes_home,
    is_background_review,
    is_interrupted,
    path_for_tools,
    working_directory,
)

__all__ = [
    "MODULES",
    "Binding",
    "CronRun",
    "NotBoundError",
    "NotConnectedError",
    "Passing",
    "SessionError",
    "State",
    "add_event_handler",
    "agent_key_of",
    "answer_for_profile",
    "bind",
    "call_first",
    "can_show_image",
    "clear_questions",
    "context_of",
    "cost_of",
    "current_cron_run",
    "current_message_id",
    "current_platform",
    "enter_folder",
    "follow_cron",
    "has_agent",
    "has_answer",
    "has_passed",
    "has_profiles",
    "has_session",
    "hermes_home",
    "is_background_review",
    "is_interrupted",
    "is_only_about_tools",
    "is_subagent",
    "leave_requests",
    "lend_api_key",
    "listen_to_reasoning",
    "live_jobs",
    "open_approvals",
    "open_session",
    "open_sessions",
    "pass_on",
    "path_for_tools",
    "probe_environment",
    "profiles",
    "remove_event_handler",
    "reopen_session",
    "report_connected",
    "report_disconnected",
    "report_fatal",
    "resolve_approval",
    "resolve_clarify",
    "session_id_of",
    "session_key_of",
    "state",
    "steer",
    "strip_from_tools",
    "take_back",
    "take_requests",
    "take_unheard",
    "tools_of",
    "toolset_of",
    "unbind",
    "widen_executor",
    "withhold_toolsets",
    "working_directory",
]
