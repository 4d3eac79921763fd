"""Times as ISO 8601: the text says the moment, in every zone and to both ends of the range."""

import datetime as dt

import pyarrow as pa
import pytest

from arrowstate.schema.nanoseconds import nanoseconds_as_text, with_whole_offsets

ZONES = ["UTC", "+05:30", "Asia/Kolkata", "America/New_York", "Europe/Amsterdam", "Europe/Paris", "Africa/Monrovia"]
YEARS = [1800, 1880, 1900, 1930, 1950, 2020]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_time_that_stays_in_its_zone_has_an_offset_of_whole_minutes(zone, unit):
    for year in YEARS:
        moments = [dt.datetime(year, 1, 2, 3, 4, 5, tzinfo=dt.UTC), None]
        given = pa.array(moments, pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit, zone))

        within = pa.StructArray.from_arrays([given], names=["at"])
        for times in (with_whole_offsets(given), with_whole_offsets(within).field("at")):
            assert times.cast(pa.timestamp(unit, "UTC")).to_pylist() == moments
            assert times[0].as_py().utcoffset().total_seconds() % 60 == 0
            assert year < 2020 or times.type == given.type


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("number", [-(2**63) + 1, 2**63 - 1, -(2**61), 0, 123, 2**61])
def test_a_text_of_nanoseconds_says_the_moment(zone, number):
    (text,) = nanoseconds_as_text(pa.array([number], pa.timestamp("ns", zone))).to_pylist()

    digits = f"{number % 10**9:09}"
    second = dt.datetime.fromisoformat(text.replace(f".{digits}", "").replace("." + digits[:6], ""))
    since = second - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert (since.days * 86_400 + since.seconds) * 10**9 + int(digits) == number
