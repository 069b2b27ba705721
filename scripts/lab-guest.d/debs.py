"""Debian packages: which ones, fetched by apt into a store, unpacked into a folder. Installs nothing."""
import os
import re
import shutil
import subprocess

from problem import Problem

# What a build takes from the machine, and the package that has it.
TOOLS = {"apt-get": "apt", "apt-cache": "apt", "dpkg-deb": "dpkg"}


def check_tools(more):
    missing = [f"{tool} (package {package})" for tool, package in {**TOOLS, **more}.items() if not shutil.which(tool)]
    if missing:
        raise Problem(f"the guest is made of Debian packages, and this machine lacks {', '.join(missing)}")


# Asks as if nothing were installed: what is installed here may be a version that no source has any more.
EMPTY = ["-o", "Dir::State::status=/dev/null"]

# What apt said of a package: name -> fields. Asking it costs most of a second, however many names the question has.
KNOWN = {}


def learn(wanted):
    """Asks apt for all of these packages at once."""
    unknown = [name for name in wanted if name not in KNOWN]
    if not unknown:
        return
    done = subprocess.run(["apt-cache", *EMPTY, "--no-all-versions", "show", *unknown], capture_output=True, text=True)
    for paragraph in done.stdout.split("\n\n"):
        fields = {}
        for line in paragraph.splitlines():
            field, colon, value = line.partition(": ")
            if colon and not field.startswith(" "):
                fields.setdefault(field, value)
        if "Package" in fields:
            KNOWN.setdefault(fields["Package"], fields)
    for name in unknown:
        KNOWN.setdefault(name, {})


def show(name):
    """The fields of a package's newest version; empty when apt does not know it."""
    learn([name])
    return KNOWN[name]


def names(depends):
    """The names in a dependency field; of alternatives the first."""
    return [re.split(r"[\s(:|]", part.strip())[0] for part in depends.split(",") if part.strip()]


def kernel_package():
    """The package of Debian's current kernel for this machine, and its version."""
    found = show("linux-image-amd64")
    if not found and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        KNOWN.clear()
        found = show("linux-image-amd64")
    if not found:
        raise Problem("apt knows no package linux-image-amd64. Run 'apt-get update' as root; if that does not help, "
                      "this is no Debian on x86-64, and the guest cannot be built here")
    for name in names(found.get("Depends", "")):
        if name.startswith("linux-image-"):
            return name, show(name).get("Version", found["Version"])
    raise Problem(f"linux-image-amd64 depends on no kernel: {found.get('Depends')}")


def with_libraries(wanted):
    """The packages and the library packages that they depend on, directly and through libraries."""
    chosen, todo = {}, list(wanted)
    while todo:
        learn(todo)
        more = []
        for name in todo:
            fields = show(name)
            if not fields and name in wanted:
                raise Problem(f"apt knows no package {name}: run 'apt-get update' as root")
            if fields:
                chosen[name] = None
                more += names(fields.get("Pre-Depends", "")) + names(fields.get("Depends", ""))
        # Scripts of packages never run here, so what only they need (debconf, perl) stays out.
        library = lambda name: name.startswith("lib") and not name.startswith(("libperl", "libpython")) or name == "zlib1g"
        todo = [name for name in dict.fromkeys(more) if library(name) and name not in chosen]
    return list(chosen)


def fetch(wanted, store, say):
    """Brings the newest version of each package into the store; returns name -> archive."""
    store.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in wanted:
        fields = show(name)
        if "Version" not in fields:
            raise Problem(f"apt knows no package {name}: run 'apt-get update' as root")
        version = fields["Version"].replace(":", "%3a")
        files[name] = store / f"{name}_{version}_{fields['Architecture']}.deb"
    missing = [name for name, file in files.items() if not file.exists()]
    if missing:
        say(f"fetching {len(missing)} packages")
        partial = store / f"partial.{os.getpid()}"
        partial.mkdir()
        try:
            done = subprocess.run(["apt-get", *EMPTY, "download", "-qq", *missing], cwd=partial, capture_output=True, text=True)
            for file in partial.iterdir():
                file.rename(store / file.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        absent = [name for name in missing if not files[name].exists()]
        if absent:
            raise Problem(f"apt-get could not download {' '.join(absent)}: is there a network, and are the package lists "
                          f"fresh ('apt-get update' as root)?\n{done.stderr.strip()}")
    # Older versions go; what other images are made of stays.
    for file in store.iterdir():
        if file.name.split("_")[0] in files and file not in files.values() or file.name.startswith("partial."):
            shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink()
    return files


def unpack(archive, folder):
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["dpkg-deb", "--extract", str(archive), str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        archive.unlink()
        raise Problem(f"{archive.name} cannot be unpacked and was removed; run this again to fetch it anew.\n{done.stderr.strip()}")
