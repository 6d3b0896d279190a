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
