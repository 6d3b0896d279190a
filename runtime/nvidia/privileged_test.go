package nvidia

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

// everyNode are devices of a node with GPUs, as a privileged container has them.
const everyNode = `"devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
	{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255},
	{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]`

func TestAllowsEveryDevice(t *testing.T) {
	cases := []struct {
		name, rules string
		want        bool
	}{
		{"docker run --privileged, podman run --privileged", `[{"allow": true, "access": "rwm"}]`, true},
		{"with a type", `[{"allow": true, "type": "a", "access": "rwm"}]`, true},
		{"without making nodes", `[{"allow": true, "access": "rw"}]`, true},
		{"nothing, and then all", `[{"allow": false, "access": "rwm"}, {"allow": true, "access": "rwm"}]`, true},
		{"one more", `[{"allow": true, "access": "rwm"}, {"allow": true, "type": "c", "major": 195, "access": "rwm"}]`, true},
		{"none", `[]`, false},
		{"nothing", `[{"allow": false, "access": "rwm"}]`, false},
		{"all, and then nothing", `[{"allow": true, "access": "rwm"}, {"allow": false, "access": "rwm"}]`, false},
		{"all but one", `[{"allow": true, "access": "rwm"}, {"allow": false, "type": "c", "major": 195, "access": "rwm"}]`, false},
		{"all nodes may be made, as Docker has it", `[{"allow": true, "type": "c", "access": "m"}, {"allow": true, "type": "b", "access": "m"}]`, false},
		{"only to make nodes", `[{"allow": true, "type": "a", "access": "m"}]`, false},
		{"only to read", `[{"allow": true, "access": "r"}]`, false},
		{"one kind", `[{"allow": true, "type": "c", "access": "rwm"}]`, false},
		{"one number", `[{"allow": true, "major": 195, "access": "rwm"}]`, false},
		{"one minor number", `[{"allow": true, "minor": 1, "access": "rwm"}]`, false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := specFrom(t, `{"linux": {`+everyNode+`, "resources": {"devices": `+tc.rules+`}},
				"mounts": [{"destination": "/dev/nvidia1", "source": "/dev/nvidia1", "type": "bind"}]}`)
			must.Eq(t, tc.want, allowsEveryDevice(spec))
			must.Eq(t, tc.want, len(testDevices.Requests(spec)) == 0)
		})
	}
	must.False(t, allowsEveryDevice(specFrom(t, `{"linux": {`+everyNode+`}}`)))
	must.False(t, allowsEveryDevice(specFrom(t, `{"linux": null}`)))
}

// A privileged container asks for GPUs as others do, but for its devices.
func TestRequests_Privileged(t *testing.T) {
	const privileged = `{"linux": {` + everyNode + `, "resources": {"devices": [{"allow": true, "access": "rwm"}]}}}`
	for _, tc := range []struct{ name, spec, want string }{
		{"by a variable", `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}`, `NVIDIA_VISIBLE_DEVICES="all"`},
		{"by a hook", `{"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}}`,
			`the hook "nvidia-container-runtime-hook"`},
		{"by an annotation", `{"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}`, `the annotation "cdi.k8s.io/x"`},
		{"by a volume", `{"mounts": [{"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null", "type": "bind"}]}`,
			`a mount at "/var/run/nvidia-container-devices/0"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := specFrom(t, privileged)
			must.SliceEmpty(t, testDevices.Requests(spec))
			must.NoError(t, json.Unmarshal([]byte(tc.spec), spec))
			must.Eq(t, []string{tc.want}, testDevices.Requests(spec))
		})
	}
}
