package spec

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/network"
)

func TestWithSysctls(t *testing.T) {
	asked := &TaskConfig{Sysctl: Pairs{{"kernel.msgmax": "1"}, {"net.core.somaxconn": "2"}}}
	sysctls := apply(t, withSysctls(asked, &network.Network{Mode: network.None}, true)).Linux.Sysctl
	must.Eq(t, "1", sysctls["kernel.msgmax"])
	must.Eq(t, "2", sysctls["net.core.somaxconn"])
	must.Eq(t, "0", sysctls[unprivilegedPorts])

	asked.Sysctl = append(asked.Sysctl, map[string]string{unprivilegedPorts: "1024"})
	must.Eq(t, "1024", apply(t, withSysctls(asked, &network.Network{Mode: network.Bridge}, false)).Linux.Sysctl[unprivilegedPorts])

	_, err := tryApply(withSysctls(asked, &network.Network{Mode: network.Host}, false))
	must.ErrorContains(t, err, `option sysctl: "net.core.somaxconn" = "2": the task uses the node's network`)
	_, err = tryApply(withSysctls(asked, &network.Network{Mode: network.Bridge}, true))
	must.ErrorContains(t, err, "userns_mode")
	must.Nil(t, apply(t, withSysctls(&TaskConfig{}, &network.Network{Mode: network.Bridge}, true)).Linux.Sysctl)
	must.Nil(t, apply(t, withSysctls(&TaskConfig{}, &network.Network{Mode: network.Host}, false)).Linux.Sysctl)
}

func TestTaskConfig_checkSysctl_values(t *testing.T) {
	for value, want := range map[string]string{
		"68719476736":      "",
		"250 32000 32 128": "",
		"250\t32000":       "",
		"abc":              "the kernel takes only numbers for it",
		"1g":               "the kernel takes only numbers for it",
		"":                 "the value is empty",
	} {
		config := &TaskConfig{Sysctl: Pairs{{"kernel.sem": value}}}
		err := config.checkSysctl()
		if want == "" {
			must.NoError(t, err, must.Sprint(value))
		} else {
			must.ErrorContains(t, err, `option sysctl: "kernel.sem" = `, must.Sprint(value))
			must.ErrorContains(t, err, want, must.Sprint(value))
		}
	}
}
