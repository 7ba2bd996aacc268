"""Changes to the kernel's settings that hosts with hanging P2P often need, as a diff to look at. Nothing is written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from .check import Check
from .pcie import iommu_is_off

GRUB, MODPROBE = "/etc/default/grub", "/etc/modprobe.d/shardsweep-nvidia.conf"
# As a shell reads it: in quotes or one bare word, and perhaps a comment.
_LINE = re.compile(
    r"""^(?P<name>GRUB_CMDLINE_LINUX(?:_DEFAULT)?=)(?:(?P<quote>["'])(?P<quoted>.*?)(?P=quote)|(?P<bare>[^\s"'#]*))"""
    r"""(?P<rest>\s*|\s+\#.*)$"""
)
_AFTER = "Then: update-grub (or grub2-mkconfig), update-initramfs -u (or dracut -f), and a reboot when it suits you."


def hints(checks: Sequence[Check], files: Mapping[str, str], command_line: str, vendor: str) -> list[str]:
    """Lines of a unified diff for what the checks `iommu`, `acs` and `hmm` found; [] where nothing is to be done.

    Args:
        files: {GRUB: its content, MODPROBE: its content}, as far as they exist.
        vendor: `amd` or `intel`, of the processors.
    """
    verdicts = {check.id: check for check in checks}
    redirected = any(verdicts[name].verdict in ("fail", "warning") for name in ("iommu", "acs") if name in verdicts)
    lines: list[str] = []
    if redirected and not iommu_is_off(command_line):
        options = ["iommu=off", *(["amd_iommu=off"] if vendor == "amd" else ["intel_iommu=off"] * (vendor == "intel"))]
        lines += _diff(GRUB, files.get(GRUB, ""), _with_options(files.get(GRUB, ""), options))
    hmm_is_on = "hmm" in verdicts and verdicts["hmm"].seen.startswith("on")
    if redirected and hmm_is_on:
        old = files.get(MODPROBE, "")
        lines += _diff(MODPROBE, old, old.rstrip("\n") + "\noptions nvidia_uvm uvm_disable_hmm=1\n")
    return [*lines, _AFTER] if lines else []


def _with_options(grub: str, options: Sequence[str]) -> str:
    """The content with the options at the end of the first GRUB_CMDLINE_LINUX line; other iommu words go."""
    lines = grub.splitlines()
    places = [place for place, line in enumerate(lines) if _LINE.match(line)]
    preferred = [place for place in places if lines[place].startswith("GRUB_CMDLINE_LINUX_DEFAULT")]
    if not places:
        return "\n".join([*lines, f'GRUB_CMDLINE_LINUX_DEFAULT="{" ".join(options)}"']).lstrip("\n") + "\n"
    place = (preferred or places)[0]
    match = _LINE.match(lines[place])
    if match is None:
        return grub
    words = (match["quoted"] or match["bare"] or "").split()
    kept = [word for word in words if not re.match(r"(?:amd_|intel_)?iommu=", word)]
    quote = match["quote"] or '"'
    lines[place] = f"{match['name']}{quote}{' '.join([*kept, *options])}{quote}{match['rest'].rstrip()}"
    return "\n".join(lines) + "\n"


def _diff(path: str, old: str, new: str) -> list[str]:
    return list(
        difflib.unified_diff(
            old.splitlines(), new.lstrip("\n").splitlines(), path, path, "now", "hint", n=1, lineterm=""
        )
    )
