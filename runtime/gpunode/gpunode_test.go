package gpunode

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestIs(t *testing.T) {
	for file, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/nvidia12": true, "/dev/nvidiactl": true, "/dev/nvidia-uvm": true,
		"/dev/nvidia-uvm-tools": true, "/dev/nvidia-caps/nvidia-cap1": true, "/dev/nvidia-modeset": true,
		"/dev/nvidia": true, "/dev/nvidia/0": true,
		"/dev/nvidiactl2": true, "/dev/nvidiafoo": true, "/dev/nvi": false, "/dev/null": false, "/x/dev/nvidia0": false,
		"/dev/dri/card0": false, "": false,
	} {
		must.Eq(t, want, Is(file), must.Sprint(file))
	}
}
