"""The page of all checkpoints."""


def test_it_has_a_row_for_each_entry_newest_first_with_what_it_took(visit):
    found = visit.json("/0/checkpoints.json")["entries_shown"]

    assert [row["checkpoint_id"] for row in found] == [12, 11, 10, 9, 8, 7, None, 6, 5, 4, 3, 2, 1, None]
    assert {row["kind"] for row in found} == {"checkpoint", "fence"}
    newest = found[0]
    assert newest["watermark_lag_ms"] == 5_000
    assert newest["bytes_total"] >= newest["bytes_written"] > 0
    assert newest["freeze_ms"] >= 0
    assert [row["tags"] for row in found if row["checkpoint_id"] == 3] == [["gold"]]


def test_a_writer_that_begins_names_the_checkpoints_around_it(visit):
    fences = [row for row in visit.json("/0/checkpoints.json")["entries_shown"] if row["kind"] == "fence"]

    assert [(row["before_id"], row["after_id"]) for row in fences] == [(6, 7), (None, 1)]
    assert '"42"' in fences[0]["properties"]


def test_a_day_before_is_the_checkpoint_as_of_then(visit):
    assert visit.json("/0/checkpoints.json")["a_day_before"] == 4


def test_pages_follow_each_other_without_a_gap(visit, monkeypatch):
    monkeypatch.setattr("arrowstate.ui.checkpoints._PAGE", 5)
    numbers, older = [], None

    while True:
        found = visit.json("/0/checkpoints.json" + ("" if older is None else f"?before={older}"))
        numbers += [row["number"] for row in found["entries_shown"]]
        older = found["older"]
        if older is None:
            break

    assert numbers == list(range(14, 0, -1))


def test_series_have_a_figure_for_each_checkpoint_and_the_marks(visit):
    found = visit.json("/0/series")

    assert found["checkpoint_id"] == list(range(1, 13))
    assert [mark["kind"] for mark in found["marks"]] == ["fence", "tag"]
    assert found["rows"] == sorted(found["rows"])


def test_whoever_asks_for_news_gets_them_once(visit):
    version = visit.json("/0/head")["version"]

    assert visit.get(f"/0/live?version={version}").status_code == 204
    assert "checkpoint 12" in visit.get("/0/live?version=old").text


def test_html_shows_text_as_text(visit):
    html = visit.get("/0/checkpoints").text

    assert "<title>Checkpoints" in html
    assert "release" in html
    assert "<script>alert" not in html
