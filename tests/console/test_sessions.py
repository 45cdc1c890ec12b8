"""Sessions and logins: how they begin and end, and what the file of logins may say."""

from __future__ import annotations

import itertools
import os
import stat

import pytest

from flowshare.console import logins
from flowshare.console.logins import PASSWORD_MAX, BadLogins, LoginFile, Role, make, matches, parse, write
from flowshare.console.sessions import AGE_S, IDLE_S, NOTICES_MAX, OF_ONE_MAX, SESSIONS_MAX, Sessions
from tests.console.world import PASSWORD, SALT, logins_at

LINE = f"ann operator {SALT.hex()} {bytes(32).hex()}\n"


@pytest.fixture
def sessions():
    numbers = itertools.count()
    return Sessions(lambda: f"secret{next(numbers)}")


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_is_found_by_its_cookie_only(sessions):
    cookie, session = sessions.begin("ann", Role.VIEWER, 0.0)

    assert sessions.find(cookie, 1.0) is session
    for other in ("", cookie + "x", session.page_token, cookie.upper(), "é\ud800"):
        assert sessions.find(other, 1.0) is None


def test_neither_cookies_nor_what_they_hash_to_can_be_read_from_what_is_kept(sessions):
    cookie, _ = sessions.begin("ann", Role.VIEWER, 0.0)

    assert cookie not in repr(vars(sessions))


def test_a_session_ends_when_it_is_not_used(sessions):
    cookie, _ = sessions.begin("ann", Role.VIEWER, 0.0)

    assert sessions.find(cookie, IDLE_S)
    assert sessions.find(cookie, 2 * IDLE_S)
    assert sessions.find(cookie, 3 * IDLE_S + 1) is None
    assert len(sessions) == 0


def test_a_session_ends_with_its_age_however_much_it_is_used(sessions):
    cookie, _ = sessions.begin("ann", Role.VIEWER, 0.0)
    for hour in range(1, int(AGE_S / 3600) + 1):
        assert sessions.find(cookie, hour * 3600.0)

    assert sessions.find(cookie, AGE_S + 1) is None


def test_who_has_logged_out_is_not_found(sessions):
    cookie, _ = sessions.begin("ann", Role.VIEWER, 0.0)
    sessions.end(cookie)
    sessions.end(cookie)

    assert sessions.find(cookie, 0.0) is None


def test_of_too_many_sessions_the_longest_unused_end(sessions):
    first, _ = sessions.begin("ann", Role.VIEWER, 0.0)
    second, _ = sessions.begin("bob", Role.VIEWER, 0.0)
    assert sessions.find(first, 1.0)
    for number in range(SESSIONS_MAX - 1):
        sessions.begin(f"eve{number}", Role.VIEWER, 2.0)

    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(first, 3.0)
    assert sessions.find(second, 3.0) is None


def test_who_logs_in_again_and_again_ends_own_sessions_and_nobody_elses(sessions):
    ann, _ = sessions.begin("ann", Role.OPERATOR, 0.0)
    first, _ = sessions.begin("eve", Role.VIEWER, 0.0)
    for _ in range(SESSIONS_MAX):
        last, _ = sessions.begin("eve", Role.VIEWER, 1.0)

    assert len(sessions) == OF_ONE_MAX + 1
    assert sessions.find(ann, 2.0)
    assert sessions.find(first, 2.0) is None
    assert sessions.find(last, 2.0)


def test_a_form_is_of_a_page_only_with_the_token_of_this_session(sessions):
    _, mine = sessions.begin("ann", Role.OPERATOR, 0.0)
    _, other = sessions.begin("ann", Role.OPERATOR, 0.0)

    assert mine.is_page(mine.page_token)
    for token in ("", other.page_token, mine.page_token[:-1], mine.page_token + " ", "é\ud800"):
        assert not mine.is_page(token)


def test_notices_are_told_once_and_bounded(sessions):
    _, session = sessions.begin("ann", Role.OPERATOR, 0.0)
    for number in range(NOTICES_MAX + 3):
        session.add_notice(str(number), good=True)

    assert [one.text for one in session.take_notices()] == [str(number) for number in range(3, NOTICES_MAX + 3)]
    assert session.take_notices() == []


# --- logins ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_password_is_kept_as_scrypt_and_matched(tmp_path):
    login = make("ann", Role.OPERATOR, PASSWORD)
    write(tmp_path / "logins", {"ann": login})
    text = (tmp_path / "logins").read_text()

    assert PASSWORD not in text
    assert parse(text, "f") == {"ann": login}
    assert matches(login, PASSWORD)
    for wrong in ("", PASSWORD + "x", PASSWORD.upper()):
        assert not matches(login, wrong)
    assert not matches(None, PASSWORD)
    assert login.hashed != make("ann", Role.OPERATOR, PASSWORD).hashed  # each has its salt


def test_a_hash_is_that_of_rfc_7914_with_32_mb():
    import hashlib

    wanted = hashlib.scrypt(b"p" * 8, salt=SALT, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)
    assert make("ann", Role.VIEWER, "p" * 8, salt=SALT).hashed == wanted


@pytest.mark.slow
def test_passwords_of_any_characters_match():
    for password in ("größe漢字 ✓", "\ud800\x00 \n" * 3, "x" * PASSWORD_MAX):
        assert matches(make("ann", Role.VIEWER, password), password)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "<b>", "é", "a" * 65, "#x/"])
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(BadLogins, match="is no name"):
        make(name, Role.VIEWER, PASSWORD)


@pytest.mark.parametrize("password", ["", "seven..", "x" * (PASSWORD_MAX + 1)])
def test_passwords_that_are_too_short_or_long_are_refused(password):
    with pytest.raises(BadLogins, match="8 to 1024 characters"):
        make("ann", Role.VIEWER, password)


@pytest.mark.parametrize(
    "line",
    [
        "ann", "ann operator", f"ann admin {SALT.hex()} {bytes(32).hex()}", f"ann operator zz {bytes(32).hex()}",
        f"ann operator {SALT.hex()} {bytes(31).hex()}", f"ann operator {SALT.hex()} {bytes(33).hex()}",
        f"a/b operator {SALT.hex()} {bytes(32).hex()}", LINE + LINE, LINE.strip() + " more", "\x00",
    ],
)  # fmt: skip
def test_a_line_that_is_no_login_is_named(line):
    with pytest.raises(BadLogins, match=r"line \d of here"):
        parse("# who may\n\n" + line, "here")


def test_logins_are_bounded(monkeypatch):
    monkeypatch.setattr(logins, "LOGINS_MAX", 2)
    with pytest.raises(BadLogins, match="more than 2 logins"):
        parse("".join(f"ann{number}{LINE[3:]}" for number in range(3)), "here")


def test_a_file_that_others_may_read_is_refused_also_from_then_on(tmp_path):
    file = logins_at(tmp_path / "logins", ann=Role.VIEWER)
    assert stat.S_IMODE((tmp_path / "logins").stat().st_mode) == 0o600
    (tmp_path / "logins").chmod(0o640)

    with pytest.raises(BadLogins, match="chmod 600"):
        file.logins()
    with pytest.raises(BadLogins, match="chmod 600"):
        LoginFile(tmp_path / "logins")


@pytest.mark.parametrize("content", [b"", b"# nobody yet\n", b"\xff\xfe"])
def test_a_file_without_a_login_is_refused_with_what_to_do(tmp_path, content):
    path = tmp_path / "logins"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(BadLogins, match=r"console-login|UTF-8"):
        LoginFile(path)


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    file = logins_at(tmp_path / "logins", ann=Role.OPERATOR)
    monkeypatch.setattr(logins, "_own", lambda: ((tmp_path / "logins").stat().st_uid + 1,))
    with pytest.raises(BadLogins, match="another user"):
        file.logins()


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(BadLogins, match="cannot be read: No such file"):
        LoginFile(tmp_path / "none")


def test_what_has_changed_is_read_again(tmp_path):
    path = tmp_path / "logins"
    file = logins_at(path, ann=Role.VIEWER)
    logins_at(path, ann=Role.OPERATOR, bob=Role.VIEWER)
    assert {name: one.role for name, one in file.logins().items()} == {"ann": Role.OPERATOR, "bob": Role.VIEWER}

    path.write_text("nonsense")
    with pytest.raises(BadLogins, match="line 1"):
        file.logins()
    path.unlink()
    with pytest.raises(BadLogins, match="cannot be read"):
        file.logins()


def test_a_file_is_written_whole_and_private_whatever_lies_beside_it(tmp_path):
    path, other = tmp_path / "logins", tmp_path / "other"
    other.write_text("somebody's")
    (tmp_path / "logins.new").symlink_to(other)
    before = os.umask(0)
    try:
        logins_at(path, ann=Role.VIEWER)
    finally:
        os.umask(before)

    assert other.read_text() == "somebody's"
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    (tmp_path / "logins.new").write_text("left behind")
    (tmp_path / "logins.new").chmod(0o644)
    assert list(logins_at(path, bob=Role.VIEWER).logins()) == ["bob"]


# --- the command -----------------------------------------------------------------------------------------------------


def console_login(*args):
    from click.testing import CliRunner

    from flowshare.console.command import console_login as command

    return CliRunner().invoke(command, [*args, "--password", PASSWORD])


@pytest.mark.slow
def test_people_are_added_and_changed_by_a_command(tmp_path):
    path = tmp_path / "logins"
    assert console_login("ann", "--role", "operator", "--file", str(path)).exit_code == 0
    assert console_login("bob", "--file", str(path)).exit_code == 0
    assert console_login("ann", "--file", str(path)).exit_code == 0

    found = LoginFile(path).logins()
    assert {name: one.role for name, one in found.items()} == {"ann": Role.VIEWER, "bob": Role.VIEWER}
    assert matches(found["ann"], PASSWORD)


def test_the_first_one_is_added_to_a_file_that_has_none_yet(tmp_path):
    path = tmp_path / "logins"
    path.write_text("# who may see the console\n")
    path.chmod(0o600)

    done = console_login("ann", "--file", str(path))

    assert done.exit_code == 0, done.exception
    assert list(LoginFile(path).logins()) == ["ann"]
