"""Report parts: makes the survey, the daemon's own doctor and the reports of dialogs.

Reads:  settings.      Calls: the constructors of those parts.
Never:  starts or waits for anything; `Instance` calls this once the other parts are built.
"""

import time

from brokerd.admin.dialog_reports import DialogReports
from brokerd.admin.doctor.own import OwnDoctor
from brokerd.admin.views.survey import Surveys
from brokerd.config.settings import Settings
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings


def build_reports(parts: Parts, settings: Settings, world: Surroundings) -> None:
    """Build the parts that report on the instance, and have peers answered about dialogs."""
    parts.surveys = Surveys(
        brokers=parts.brokers,
        readers=parts.readers,
        clock=world.clock,
        elapsed=time.thread_time,
    )
    parts.own_doctor = OwnDoctor(
        brokers=parts.brokers,
        views=parts.views,
        state=parts.state,
        survey=parts.surveys.survey,
        clock=world.clock,
        elapsed=time.thread_time,
    )
    reports = DialogReports(
        instance=settings.instance.name,
        brokers=parts.brokers,
        views=parts.views,
        state=parts.state,
        pinging=parts.pinging,
        clock=world.clock,
        spawn=parts.tasks.spawn,
        log=parts.log,
    )
    parts.pinging.reporter = reports.report
    parts.administration.dialog_reports = reports
