"""Who may see the page; each rule by itself."""

from hmac import compare_digest

import pytest
from starlette.testclient import TestClient

from arrowstate.ui import guard, serving
from arrowstate.ui.guard import HEADERS

PAGES = ["/", "/0/checkpoints", "/0/checkpoints.json", "/0/series", "/static/page.js", "/favicon.ico", "/nowhere"]


@pytest.fixture
def stranger(visit):
    """A browser without a cookie."""
    return TestClient(visit.app, base_url="http://127.0.0.1:1", follow_redirects=False)


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_without_a_cookie(stranger, path):
    answer = stranger.get(path)

    assert answer.status_code == 401
    assert "clicks" not in answer.text


def test_a_token_is_exchanged_for_a_strict_cookie_that_no_script_reads_and_leaves_the_address(visit, stranger):
    answer = stranger.get(f"/0/checkpoints?before=9&token={visit.keys.new_token()}")

    assert (answer.status_code, answer.headers["location"]) == (303, "/0/checkpoints?before=9")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "domain" not in cookie
    assert stranger.get("/0/checkpoints").status_code == 200


def test_a_token_opens_the_page_once(visit, stranger):
    token = visit.keys.new_token()
    first = stranger.get(f"/?token={token}").status_code
    stranger.cookies.clear()

    again = stranger.get(f"/?token={token}").status_code

    assert (first, again) == (303, 401)


def test_the_cookie_is_not_the_token(visit, stranger):
    token = visit.keys.new_token()

    stranger.get(f"/?token={token}")

    assert token not in dict(stranger.cookies).values()


@pytest.mark.parametrize("token", ["", "wrong", "\u00fc", "a" * 10_000])
def test_a_wrong_token_opens_nothing(visit, stranger, token):
    visit.keys.new_token()

    assert stranger.get("/", params={"token": token}).status_code == 401


@pytest.mark.parametrize("cookie", ["wrong", "", '"', "\u00fc"])
def test_a_wrong_cookie_opens_nothing(stranger, cookie):
    assert stranger.get("/0/checkpoints", headers={"cookie": f"arrowstate-1={cookie}".encode()}).status_code == 401


@pytest.mark.parametrize(
    "others",
    ["{}", "theme=dark; {}", 'prefs={{"a":1}}; {}', "a b=1; {}", "x=a b;{}; y", "n\u00e4me=1; {}", "flag; {} ; =;"],
)
def test_cookies_of_other_programs_of_this_machine_lock_nobody_out(visit, stranger, others):
    stranger.get("/", params={"token": visit.keys.new_token()})
    ((name, value),) = dict(stranger.cookies).items()
    stranger.cookies.clear()

    answers = [
        stranger.get("/0/checkpoints", headers={"cookie": others.format(cookie).encode("latin-1")}).status_code
        for cookie in (f"{name}={value}", f"{name}=wrong; {name}={value}", f"{name}x={value}", f"x={name}={value}")
    ]

    assert answers == [200, 200, 401, 401]


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer", "Basic {}", "{}"])
def test_only_the_bearer_of_the_page_is_let_in(visit, stranger, header):
    answer = stranger.get("/0/checkpoints", headers={"authorization": header.format(visit.keys.bearer)})

    assert answer.status_code == 401


def test_secrets_are_compared_in_constant_time(visit, stranger, monkeypatch):
    compared = []

    def compare(known, given):
        compared.append(given)
        return compare_digest(known, given)

    monkeypatch.setattr(guard.hmac, "compare_digest", compare, raising=True)
    stranger.get("/?token=one", headers={"cookie": "arrowstate-1=two", "authorization": "Bearer three"})

    assert {b"two", b"three"} <= set(compared)


REFUSED = ["evil.example", "evil.example:1", "127.0.0.1.evil.example", "", "[::2]:1"]


@pytest.mark.parametrize(
    ("host", "status"),
    [*((host, 400) for host in REFUSED), ("127.0.0.1", 200), ("localhost:1", 200), ("LOCALHOST", 200)],
)
def test_only_a_name_of_this_machine_is_let_in_whatever_the_cookie(visit, host, status):
    assert visit.get("/0/checkpoints", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("site", "status"), [("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403), ("odd", 403)]
)
def test_only_this_page_or_the_reader_may_ask(visit, site, status):
    assert visit.get("/0/checkpoints", headers={"sec-fetch-site": site}).status_code == status


def test_a_foreign_origin_is_refused_and_none_is_allowed(visit):
    foreign = visit.get("/0/checkpoints", headers={"origin": "http://evil.example"})
    own = visit.get("/0/checkpoints", headers={"origin": "http://127.0.0.1:1"})

    assert (foreign.status_code, own.status_code) == (403, 200)
    assert not any(name.startswith("access-control") for name in own.headers)


@pytest.mark.parametrize("path", [*PAGES, "/0/checkpoints?before=x"])
def test_every_answer_has_the_headers(visit, stranger, path):
    for answer in (visit.get(path), stranger.get(path), visit.get(path, headers={"host": "evil.example"})):
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_the_policy_allows_no_code_in_a_page_and_nothing_of_others():
    policy = dict(rule.strip().split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_page_is_only_read(visit, method):
    assert visit.client.request(method, "/0/checkpoints").status_code == 405


def test_it_listens_on_this_machine_alone_unless_told_otherwise(clicks):
    with clicks.ui() as page:
        assert page._listening.getsockname()[0] == "127.0.0.1"
        assert page.url != page.url


def test_a_bearer_that_is_easily_guessed_is_refused(clicks, monkeypatch):
    monkeypatch.setenv("ARROWSTATE_UI_TOKEN", "secret")

    with pytest.raises(serving.InvalidInputError, match="at least 16 characters"):
        serving.open_page([clicks])


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_there_is_not_is_refused_and_no_other_taken(clicks, port):
    with pytest.raises(serving.InvalidInputError, match="the port of the page must be a whole number from 0 to 65535"):
        serving.open_page([clicks], port=port)
