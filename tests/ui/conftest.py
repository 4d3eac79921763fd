"""A store to look at, and clients of its page."""

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import arrowstate
from arrowstate.ui.app import make_app
from arrowstate.ui.guard import Keys
from arrowstate.ui.site import Limits, Site

HOUR_MS = 3_600_000
BEGIN_MS = 1_763_800_000_000
NASTY = '<script>alert("x")</script>&\u202eright to left'


class Visit:
    """A page of stores and a client that may see it."""

    def __init__(self, *stores, jobs=(), limits=None, tables=()):
        self.keys = Keys()
        self.site = Site(stores, jobs, limits, tables)
        self.app = make_app(self.site, self.keys, hosts=("127.0.0.1", "localhost"), port=1)
        self.client = TestClient(self.app, base_url="http://127.0.0.1:1", follow_redirects=False)
        self.client.headers["authorization"] = f"Bearer {self.keys.bearer}"

    def get(self, path, **options):
        return self.client.get(path, **options)

    def json(self, path):
        answer = self.get(path)
        for _ in range(20):
            if answer.status_code != 504:
                break
            # It is still being read, on a machine that others use as well.
            answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="session")
def clicks(tmp_path_factory):
    """Twelve checkpoints, three hours apart, of two writers: with the second a bot and a column come."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("ui") / "clicks", create=True)
    now = [BEGIN_MS]
    store.clock_ms = lambda: now[0]
    key = pa.schema([("user", pa.string())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    profile = pa.struct([("city", pa.string())])

    def declare(profile):
        return (
            backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")),
            backend.state(arrowstate.ListStateDescriptor("pages", pa.string())),
            backend.state(arrowstate.ValueStateDescriptor("profile", profile)),
        )

    writer = store.writer(properties={"release": "41"})
    for number in range(12):
        if number == 6:
            backend = store.latest().restore("counter")
            profile = pa.struct([("city", pa.string()), ("plan", pa.string())])
            writer = store.writer(properties={"release": "42"})
        sums, pages, profiles = declare(profile)
        now[0] += 3 * HOUR_MS
        users = [f"user-{(number * 37 + place) % 200}" for place in range(60)]
        sums.add_batch(users, [1] * 60)
        pages.add_batch(users[:20], ["/start"] * 20)
        row = {"city": NASTY} if number < 6 else {"city": "Oslo", "plan": "gold"}
        profiles.update_batch(users[:10], pa.array([row] * 10, profile))
        if number >= 6:
            pages.add_batch(["bot-7"] * 100, [f"/page/{number}/{place}" for place in range(100)])
        writer.checkpoint({"counter": [backend]}, watermark=now[0] - 5_000, properties={"offset": number})
    store.tag("gold", 3)
    return store


@pytest.fixture
def visit(clicks):
    """The page of the store, seen by who may."""
    return Visit(clicks)


@pytest.fixture
def limits():
    """Makes limits."""
    return Limits
