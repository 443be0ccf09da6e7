"""Keys: how two ranks prove to each other who they are, though anybody may read what they publish.

    rank 0    secret a, publishes g^a          both know g^(ab), and nobody else does
    rank 1    secret b, publishes g^b

The exchange is Diffie and Hellman's, in the group of 2048 bits of RFC 3526. Whoever can change
what ranks publish can pose as one of them; whoever can only read it cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from weft.errors import InputError

BITS = 256  # of a secret
PROOF_SIZE = 32  # bytes
GENERATOR = 2
PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)


class Key:
    """A secret of this process, and the number by which others know it."""

    def __init__(self) -> None:
        self._secret = secrets.randbits(BITS)
        self.public = pow(GENERATOR, self._secret, PRIME)
        self._shared: dict[int, bytes] = {}  # with whom something was proved, by public number

    def proof(self, other: int, words: bytes) -> bytes:
        """What only this key and the one with that public number can say about these words."""
        if not 1 < other < PRIME - 1:
            raise InputError("a rank has published a number that is not a key")
        if other not in self._shared:
            shared = pow(other, self._secret, PRIME).to_bytes(PRIME.bit_length() // 8, "big")
            self._shared[other] = hashlib.sha256(shared).digest()
        return hmac.digest(self._shared[other], words, "sha256")
