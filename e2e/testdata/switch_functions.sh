# What the steps of TestSwitchPage ask of the machine. A job is named by its ID, and has one allocation.
PS4='$(date +%T) '

# The states of the allocations that are to run.
allocs() {
    nomad job allocs -t '{{range .}}{{if eq .DesiredStatus "run"}}{{.ClientStatus}} {{end}}{{end}}' "$1"
}

alloc() {
    nomad job allocs -t '{{range .}}{{if eq .DesiredStatus "run"}}{{.ID}}{{end}}{{end}}' "$1"
}

# waits JOB for devices: nothing of it is placed.
waits() {
    [ -z "$(allocs "$1")" ] && nomad job status "$1" | grep -q 'Placement Failure'
}

# The group and the ID of a job's device.
device() {
    nomad alloc status -t '{{range .AllocatedResources.Tasks}}{{range .Devices}}{{.Vendor}}/{{.Type}}/{{.Name}} {{index .DeviceIDs 0}}{{end}}{{end}}' \
        "$(alloc "$1")"
}

# computes JOB: its program has filled its GPU and launches kernels.
computes() {
    [ -n "$(alloc "$1")" ] && nomad alloc logs "$(alloc "$1")" | grep -q '"computing"'
}

# restarted CONTAINER: another one has taken the place of this one of Docker's, and computes.
restarted() {
    now=$(docker ps -q --filter name=train-)
    [ -n "$now" ] && [ "$now" != "$1" ] && docker logs "$now" 2>&1 | grep -q '"computing"'
}

# ready: the agent has its docker driver and one device group.
ready() {
    nomad node status -self -verbose | grep -q '^docker .*true .*true' && [ "$(groups | grep -c "^nvidia/")" = 1 ]
}

# The device groups of the node, a line each, with their devices.
groups() {
    nomad node status -self -t '{{range .NodeResources.Devices}}{{.Vendor}}/{{.Type}}/{{.Name}}{{range .Instances}} {{.ID}} {{.Healthy}} {{.HealthDescription}},{{end}}{{"\n"}}{{end}}'
}

modes_are() {
    [ "$(nomad node status -self -t '{{range .NodeResources.Devices}}{{.Attributes.mode}} {{end}}')" = "$1 " ]
}

# unhealthy REASON: there are slices, and each is unhealthy.
unhealthy() {
    groups | grep '^nvidia/slice/' | grep -q "$1" && ! groups | grep '^nvidia/slice/' | grep -q ' true '
}

# What was there before and has to be there after.
fingerprint() {
    nomad node status -self -t '{{range .NodeResources.Devices}}{{.Vendor}}/{{.Type}}/{{.Name}} {{.Attributes.memory}} {{.Attributes.driver_version}} {{.Attributes.bar1}}{{range .Instances}} {{.ID}}{{end}}{{"\n"}}{{end}}'
}

as_before() {
    fingerprint >"$1" && diff before "$1"
}

# The modes of the claims whose containers live.
claims() {
    tranche status --json | awk -F'"' '/"mode":/ { mode = $4 } /"state": "running"/ { print mode }' | sort | tr '\n' ' '
}

# another JOB DRIVER writes the page's job under another name and for another driver.
another() {
    sed "s/\"train\"/\"$1\"/; s/\"docker\"/\"$2\"/" train.nomad.hcl >"$1.nomad.hcl"
}

# await_that COMMAND... until it succeeds, for a minute or so
await_that() {
    { set +x; } 2>/dev/null
    for _ in $(seq 150); do
        if "$@" >/dev/null 2>&1; then
            set -x
            return 0
        fi
        sleep 0.1
    done
    echo "not so after a minute: $*"
    "$@" || true
    nomad job status
    tail -50 /run/nomad.log
    exit 1
}
