"""`module:app`: each way it can fail gives one line that says what to do."""

import sys

import pytest

from flowshare.agents.app import loading


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def refusal(path):
    with pytest.raises(loading.AppNotFound) as caught:
        loading.load_app(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_name_is_answered_with_the_module_name():
    assert "shop.workers:app" in refusal("shop/workers.py:app")


@pytest.mark.parametrize("path", ["", ":", "a b:app", "shop:", "1x:app"])
def test_what_is_no_module_and_attribute_is_refused(path):
    if path == "shop:":
        assert loading.split_path(path) == ("shop", "app")
    else:
        assert "module:app" in refusal(path)


def test_a_missing_module_names_the_nearest_one(here):
    (here / "shop_app.py").write_text("")

    assert "did you mean shop_app?" in refusal("shopapp:app")


def test_a_missing_import_inside_the_module_is_told_apart(here):
    (here / "shop_imp.py").write_text("import not_there_at_all\n")

    text = refusal("shop_imp:app")

    assert "not_there_at_all" in text
    assert "shop_imp.py line 1" in text


def test_an_error_at_import_says_where(here):
    (here / "shop_bad.py").write_text("x = 1\nraise ValueError('no such option: tiemout')\n")

    text = refusal("shop_bad:app")

    assert "ValueError: no such option: tiemout" in text
    assert "shop_bad.py line 2" in text


def test_a_syntax_error_says_where(here):
    (here / "shop_syn.py").write_text("def f(:\n")

    assert "SyntaxError" in refusal("shop_syn:app")


def test_a_refused_option_names_the_users_line(here):
    (here / "shop_opt.py").write_text(
        "import flowshare as fs\n"
        "app = fs.App('shop', broker='memory://')\n"
        "@app.share_agent('orders', tiemout=1)\n"
        "async def bill(order: dict): ...\n"
    )

    text = refusal("shop_opt:app")

    assert "shop_opt.py line 3" in text
    assert "'timeout'" in text
    assert "OptionError" not in text


def test_an_app_is_found_and_its_near_misses_are_told(here):
    (here / "shop_ok.py").write_text(
        "import faust\nimport flowshare as fs\napp = fs.App('shop', broker='memory://')\nnumber = 3\n"
        "old = faust.App('old')\n"
    )

    assert loading.load_app("shop_ok").app_id == "shop"
    assert "did you mean shop_ok:app?" in refusal("shop_ok:ap")
    assert "is a int, not a flowshare.App; it has shop_ok:app" in refusal("shop_ok:number")
    assert "make it a flowshare.App" in refusal("shop_ok:old")
