"""SCRAM as RFC 5802, RFC 7677 and RFC 4013 (SASLprep) have it."""

from __future__ import annotations

import pytest

from flowshare.protocol import scram

# RFC 7677, section 3: user "user", password "pencil".
FIRST = "n=user,r=rOprNGfwEbeRWgbNEkqO"
ANSWER = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
DIALOGUE = f"{FIRST},{ANSWER},{LAST}".encode()


@pytest.fixture(scope="module")
def salted():
    return scram.salted_password("sha256", b"pencil", scram.unbase64("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)


def test_the_dialogue_of_the_rfc_has_its_proof_and_its_signature(salted):
    assert scram.base64_of(scram.client_proof("sha256", salted, DIALOGUE)) == PROOF
    assert scram.base64_of(scram.keyed("sha256", scram.server_key("sha256", salted), DIALOGUE)) == SIGNATURE


def test_a_proof_holds_for_its_password_and_its_dialogue_alone(salted):
    stored, proof = scram.stored_key("sha256", salted), scram.unbase64(PROOF)

    assert scram.proof_holds("sha256", stored, DIALOGUE, proof)
    assert not scram.proof_holds("sha256", stored, DIALOGUE + b"x", proof)
    assert not scram.proof_holds("sha256", stored, DIALOGUE, bytes(32))
    assert not scram.proof_holds("sha256", stored, DIALOGUE, proof[:-1])


def test_attributes_are_read_in_their_order_and_extensions_behind_them_are_left():
    assert scram.fields(ANSWER, "rsi")[2] == "4096"
    assert scram.fields("n=user,r=abc,x=later", "nr") == ["user", "abc"]


@pytest.mark.parametrize("message", ["", "n=user", "r=abc,n=user", "n:user,r=abc"])
def test_attributes_in_another_order_or_missing_are_refused(message):
    with pytest.raises(scram.ScramError, match="n, r in this order"):
        scram.fields(message, "nr")


def test_an_extension_that_must_be_understood_is_refused():
    with pytest.raises(scram.ScramError, match="demands an extension"):
        scram.fields("m=new,n=user,r=abc", "nr")


def test_a_message_is_text_of_a_bounded_length():
    assert scram.text_of("ü".encode()) == "ü"
    with pytest.raises(scram.ScramError, match="longer than 4096 bytes"):
        scram.text_of(bytes(scram.MESSAGE_MAX + 1))
    with pytest.raises(scram.ScramError, match="no UTF-8"):
        scram.text_of(b"\xff")


@pytest.mark.parametrize("text", ["a", "W22Z aJ0S", "ä==="])
def test_what_is_no_strict_base64_is_refused(text):
    with pytest.raises(scram.ScramError, match="no base64"):
        scram.unbase64(text)


@pytest.mark.parametrize("name", ["user", "a,b=c", "=2C", "=", ",,=="])
def test_a_name_with_commas_and_equals_signs_comes_back(name):
    assert "," not in scram.escaped(name)
    assert scram.unescaped(scram.escaped(name)) == name


def test_a_bare_equals_sign_in_a_name_is_refused():
    with pytest.raises(scram.ScramError, match="bare '='"):
        scram.unescaped("a=b")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I\u00adX", "IX"),  # RFC 4013, section 3: a soft hyphen goes
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),  # a space that does not break is one
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_a_password_has_one_form(text, found):
    assert scram.prepared(text) == found


@pytest.mark.parametrize("text", ["\u0007", "\ue000", "\u0627\u0031", "\u0627b\u0627"])
def test_control_characters_and_mixed_directions_are_refused(text):
    with pytest.raises(scram.ScramError) as refused:
        scram.prepared(text)

    assert text not in str(refused.value)
