package edit

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestRequestedCapabilities(t *testing.T) {
	cases := []struct {
		name    string
		env     []string
		allowed string
		want    string
	}{
		{"not said", nil, "", "compute,utility"},
		{"empty", []string{"NVIDIA_DRIVER_CAPABILITIES="}, "", "compute,utility"},
		{"some", []string{"NVIDIA_DRIVER_CAPABILITIES=video, compute"}, "", "compute,video"},
		{"all", []string{"NVIDIA_DRIVER_CAPABILITIES=all"}, "", "compute,utility,video,graphics,display,ngx,compat32"},
		{"all and one more", []string{"NVIDIA_DRIVER_CAPABILITIES=video,all"}, "", everyCapability.String()},
		{"said twice", []string{"NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"}, "", "utility"},
		{"all of few", []string{"NVIDIA_DRIVER_CAPABILITIES=all"}, "compute,utility,video", "compute,utility,video"},
		{"not said, of few", nil, "utility,video", "utility"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			allowed, err := Node{DriverCapabilities: tc.allowed}.allowedCapabilities()
			must.NoError(t, err)
			asked, err := askedCapabilities(&specs.Spec{Process: &specs.Process{Env: tc.env}}, allowed)
			must.NoError(t, err)
			must.Eq(t, tc.want, asked.String())
		})
	}
}

func TestRequestedCapabilities_Errors(t *testing.T) {
	cases := []struct {
		name, value, allowed string
		named                []string
	}{
		{
			"unknown", "compute,raytracing", "",
			[]string{"NVIDIA_DRIVER_CAPABILITIES", `"raytracing"`, "compute,utility,video,graphics,display,ngx,compat32", "all"},
		},
		{
			"not allowed", "compute,graphics,video", "compute,utility",
			[]string{"NVIDIA_DRIVER_CAPABILITIES", "video,graphics", "compute,utility", "driver_capabilities"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			allowed, err := Node{DriverCapabilities: tc.allowed}.allowedCapabilities()
			must.NoError(t, err)
			spec := &specs.Spec{Process: &specs.Process{Env: []string{"NVIDIA_DRIVER_CAPABILITIES=" + tc.value}}}
			_, err = askedCapabilities(spec, allowed)
			for _, named := range tc.named {
				must.ErrorContains(t, err, named)
			}
		})
	}
}

func TestAllowedCapabilities_Errors(t *testing.T) {
	for _, value := range []string{"compute,everything", " , "} {
		_, err := Node{DriverCapabilities: value}.allowedCapabilities()
		must.ErrorContains(t, err, "driver_capabilities")
	}
}
