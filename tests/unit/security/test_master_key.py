"""What the master key encrypts is read with it and its context only, and it is never shown."""

import pickle
from random import Random

import pytest

from brokerd.errors import NoMasterKey
from brokerd.ids import BrokerId
from brokerd.security.master_key import MasterKey

KEY = bytes(range(32))
BROKER = BrokerId(bytes(16))
WRAPPED = (
    "01f5b165224a58b791df6af1d8303e61cdc4bb86c3d1c427103c344c41"
    "368db924f0f3f2efe7c62f75fd9a5f1fd615d1b730d4"
)


def master(key: bytes = KEY, seed: int = 1) -> MasterKey:
    return MasterKey(key, Random(seed).randbytes)


@pytest.mark.rule("SX-6")
def test_a_secret_comes_back_with_its_context() -> None:
    wrapped = master().wrap(b"secret", b"here")
    assert master(seed=2).unwrap(wrapped, b"here") == b"secret"
    assert b"secret" not in wrapped


@pytest.mark.rule("SX-6")
@pytest.mark.parametrize(
    ("reader", "context"),
    [
        (master(), b"there"),
        (master(bytes(32)), b"here"),
        (master().for_broker(BROKER), b"here"),
    ],
)
def test_another_key_or_context_reads_nothing(reader: MasterKey, context: bytes) -> None:
    with pytest.raises(NoMasterKey):
        reader.unwrap(master().wrap(b"secret", b"here"), context)


@pytest.mark.rule("SX-6")
def test_each_byte_counts() -> None:
    wrapped = master().wrap(b"secret", b"here")
    for at in range(len(wrapped)):
        changed = bytearray(wrapped)
        changed[at] ^= 1
        with pytest.raises(NoMasterKey):
            master().unwrap(bytes(changed), b"here")
        with pytest.raises(NoMasterKey):
            master().unwrap(wrapped[:at], b"here")


@pytest.mark.rule("SX-6")
def test_brokers_have_different_keys() -> None:
    other = BrokerId(bytes([1]) * 16)
    wrapped = master().for_broker(BROKER).wrap(b"secret", b"here")
    assert master().for_broker(BROKER).unwrap(wrapped, b"here") == b"secret"
    with pytest.raises(NoMasterKey):
        master().for_broker(other).unwrap(wrapped, b"here")


@pytest.mark.rule("SX-5")
def test_the_same_secret_is_never_encrypted_twice_to_the_same_bytes() -> None:
    key = master()
    assert len({key.wrap(b"secret", b"here") for _ in range(100)}) == 100


@pytest.mark.rule("SX-5")
def test_what_this_version_encrypts_is_read_by_every_later_one() -> None:
    assert master().unwrap(bytes.fromhex(WRAPPED), b"here") == b"secret"


@pytest.mark.rule("SX-9")
def test_the_key_is_in_no_text_and_is_not_pickled() -> None:
    key = master()
    for text in (repr(key), str(key), f"{key}"):
        assert KEY.hex() not in text
        assert repr(KEY) not in text
    with pytest.raises(TypeError):
        pickle.dumps(key)
