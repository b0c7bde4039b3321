#!/bin/sh
# Builds a Kubernetes control plane without containers: etcd from Debian's package, kube-apiserver,
# kube-controller-manager and kube-scheduler 1.20.2 from Debian's source package, all from bookworm.
#
# Usage: tools/cluster/build.sh [FOLDER]      (again: keeps what is there)
#
# FOLDER is ~/.cache/photodup/cluster-tools unless named. The build needs Debian or Ubuntu on x86-64 with dpkg-dev and
# make, about 6 minutes of CPU, 1 GB of memory and 2 GB of disk; 95 MB stay. It installs nothing into the system.
#
# 1.20.2 is the newest version whose servers a Debian suite carries as source with every dependency: later suites have
# kubectl alone. Kubernetes is under Apache-2.0; its licence and etcd's go into the folder.
set -eu

version="1.20.5+really1.20.2-1.1+deb12u1"
tools=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/photodup/cluster-tools}

if [ -x "$tools/kube-apiserver" ] && [ -x "$tools/etcd" ]; then
    echo "The control plane is built: $tools"
    exit 0
fi
[ "$(uname -s)-$(uname -m)" = "Linux-x86_64" ] || {
    echo "build.sh: only Linux x86-64 is known to build these servers." >&2
    exit 2
}
for tool in apt-get dpkg-source make; do
    command -v "$tool" >/dev/null || {
        echo "build.sh: $tool is missing; on Debian or Ubuntu, apt-get install dpkg-dev make." >&2
        exit 2
    }
done

mkdir -p "$tools"
tools=$(cd "$tools" && pwd)
work=$(mktemp -d "$tools/build.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# A package list of our own: the system's sources and installed packages stay as they are. A mirror that the system
# names comes first, so that a machine without the Internet's Debian uses its own.
mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 1p)
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/sources"
cat >"$work/sources/bookworm.sources" <<END
Types: deb deb-src
URIs: ${mirror:-http://deb.debian.org/debian}
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
touch "$work/status"
cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$work/sources";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
END

echo "Fetching Kubernetes $version, Go 1.19 and etcd from Debian ..."
export APT_CONFIG="$work/apt.conf"
cd "$work"
apt-get -qq update
apt-get -qq download etcd-server golang-1.19-go golang-1.19-src rsync libpopt0 libxxhash0 \
    golang-github-modern-go-reflect2-dev
apt-get -qq source --download-only "kubernetes=$version"
for package in *.deb; do dpkg-deb --extract "$package" "$work/root"; done
dpkg-source --no-check --extract kubernetes_*.dsc "$work/kubernetes" >/dev/null
unset APT_CONFIG

# reflect2 1.0.1, which the source carries, reads maps as Go laid them out before 1.18: built with Go 1.19,
# kube-apiserver ends at its first custom resource. Debian packages 1.0.2, which reads both.
reflect="kubernetes/vendor/github.com/modern-go/reflect2"
rm -f "$reflect"/*.go "$reflect"/*.s
cp root/usr/share/gocode/src/github.com/modern-go/reflect2/*.[gs]* "$reflect/"

# One program for the three servers, which share nearly all of their code; its name decides which one it is.
mkdir -p kubernetes/cmd/control-plane kubernetes/.path/src/k8s.io
ln -s ../../.. kubernetes/.path/src/k8s.io/kubernetes
cat >kubernetes/cmd/control-plane/main.go <<'END'
package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var servers = map[string]func() *cobra.Command{
	"kube-apiserver":          kubeapiserver.NewAPIServerCommand,
	"kube-controller-manager": kubecontrollermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return kubescheduler.NewSchedulerCommand() },
}

func main() {
	name := filepath.Base(os.Args[0])
	server, known := servers[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s is no server of the control plane\n", name)
		os.Exit(2)
	}
	rand.Seed(time.Now().UnixNano())
	logs.InitLogs()
	err := server().Execute()
	logs.FlushLogs()
	if err != nil {
		os.Exit(1)
	}
}
END

echo "Building (about 6 minutes of CPU) ..."
stamps="-s -w"
for package in component-base/version client-go/pkg/version; do
    for value in gitVersion=v1.20.2 gitMajor=1 gitMinor=20 gitTreeState=archive gitCommit=debian \
        buildDate=1970-01-01T00:00:00Z; do
        stamps="$stamps -X k8s.io/kubernetes/vendor/k8s.io/$package.$value"
    done
done
export GOROOT="$work/root/usr/lib/go-1.19" GOPATH="$work/kubernetes/.path" GOPROXY=off GO111MODULE=off CGO_ENABLED=0
export GOCACHE="$work/gocache" PATH="$work/root/usr/lib/go-1.19/bin:$work/root/usr/bin:$PATH"
export LD_LIBRARY_PATH="$work/root/usr/lib/x86_64-linux-gnu"
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20 KUBE_GIT_TREE_STATE=archive KUBE_GIT_COMMIT=debian
log="$tools/build.log"
(
    cd "$GOPATH/src/k8s.io/kubernetes"
    make generated_files && go build -tags providerless -ldflags "$stamps" -o "$work/control-plane" ./cmd/control-plane
) >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "build.sh: the build failed; all of its output is in $log" >&2
    exit 1
}
rm "$log"

cp kubernetes/LICENSE "$tools/LICENSE.kubernetes"
cp root/usr/share/doc/etcd-server/copyright "$tools/LICENSE.etcd"
mv root/usr/bin/etcd "$tools/etcd"
mv control-plane "$tools/control-plane"
for server in kube-controller-manager kube-scheduler kube-apiserver; do ln -sf control-plane "$tools/$server"; done
echo "The control plane is built: $tools"
