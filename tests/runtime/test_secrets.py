"""Secrets of a connection are not in texts."""

from arrowstate.runtime.secrets import hidden, secrets_of


def test_options_are_secret_by_their_names():
    options = {
        "bootstrap.servers": "broker:9092",
        "sasl.username": "ann",
        "sasl.password": "p1",
        "ssl.key.pem": "-----BEGIN",
        "sasl.oauthbearer.client.secret": "s3",
        "ssl.key.password": "",
    }

    assert secrets_of(options) == ["p1", "-----BEGIN", "s3"]


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it():
    assert hidden("login with abc and abcdef failed", ["abc", "abcdef"]) == "login with *** and *** failed"
