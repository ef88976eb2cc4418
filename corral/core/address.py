"""IP addresses, and which of them are private."""

from __future__ import annotations

import functools
import ipaddress

# Not `is_private` of `ipaddress`, which includes addresses for documentation and tests. 100.64.0.0/10 is
# excluded on purpose: customers of one provider share it.
_PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
)


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; IPv4 mapped to IPv6 becomes IPv4. None for a name."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@functools.lru_cache(maxsize=256)
def is_private(address: str) -> bool:
    """Whether the address is of this machine or a private network, including IPv4 mapped to IPv6."""
    found = parse_address(address)
    return found is not None and any(found in network for network in _PRIVATE)
