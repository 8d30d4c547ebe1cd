"""Fixtures of all rooms: tiny models on disk, and the real one by the product's own code."""

import os

import pytest

import rillm
from rillm.checkpoint import hub
from weights import write_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """tiny_folder("base") -> a model folder of that recorded case, written once."""
    written = {}

    def folder(case: str, dtype: str = "F32", shards: int = 1):
        key = (case, dtype, shards)
        if key not in written:
            written[key] = tmp_path_factory.mktemp(f"{case}-{dtype}-{shards}")
            write_model(written[key], case, dtype, shards)
        return written[key]

    return folder


@pytest.fixture(scope="session")
def real_model_path():
    """The default model's file, fetched as the product fetches it."""
    if os.environ.get("RILLM_OFFLINE") == "1":
        pytest.skip("RILLM_OFFLINE=1: this test needs the real model")
    return hub.find("smollm2-135m")


@pytest.fixture(scope="session")
def real_model(real_model_path):
    with rillm.Model.from_pretrained(real_model_path) as model:
        yield model
