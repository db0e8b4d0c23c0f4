"""Who is in the fleet: now, and for one run. A run's first look is kept, so that all its tasks see the same members.

Assembly alone: the fleet file is read by ``fleet_file.py``, members are looked up by ``engines/discovery.py``.
"""

from warmup_tasks.fleet_file import FleetFile, load_fleet
from warmup_tasks.runs import Run
from warmup_tasks.settings import Site, validate

DATASET = "fleets"


def present_fleet(site: Site) -> FleetFile:
    """Return the fleet with the replicas that are there now.

    Raises:
        ConfigurationError: the fleet file is refused, or a source's answer is.
        RetryLaterError: a source does not answer.
    """
    from warmup_tasks.engines.discovery import discover

    return discover(load_fleet(site.fleet_path))


def declared_fleet(site: Site, run: Run) -> FleetFile:
    """Return the fleet of now as it is declared for a run: in a release with the versions that come.

    Raises as :func:`present_fleet`.
    """
    fleet = present_fleet(site)
    return run.release.declared(fleet) if run.release else fleet


def record_fleet(site: Site, run: Run) -> FleetFile:
    """Look the fleet up and keep it for a run, in place of what an earlier try of its first step saw.

    Raises as :func:`present_fleet`.
    """
    from warmup_tasks.lake import Lake

    fleet = declared_fleet(site, run)
    Lake(site.lake_uri).publish(DATASET, run.run_id, {}, meta={"fleet": fleet.model_dump(mode="json")})
    return fleet


def fleet_of(site: Site, run: Run) -> FleetFile:
    """Return the fleet as a run's first step saw it; for a run that recorded none, as it is now.

    Raises as :func:`present_fleet`.
    """
    from warmup_tasks.lake import Lake

    ref = Lake(site.lake_uri).latest(DATASET, run.run_id)
    if ref is None:
        return declared_fleet(site, run)
    return validate(Lake(site.lake_uri).meta(ref)["fleet"], FleetFile, f"fleet of run {run.run_id}")
