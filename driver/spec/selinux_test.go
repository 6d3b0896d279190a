package spec

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestWithSELinux(t *testing.T) {
	cases := []struct {
		opts           []string
		process, mount string
	}{
		{nil, "", ""},
		{[]string{"label=disable"}, "", ""},
		{[]string{"label=type:svirt_t"}, "system_u:system_r:svirt_t:s0", "system_u:object_r:container_file_t:s0"},
		{[]string{"label=level:s0:c1,c2", "label=user:u", "label=role:r"}, "u:r:container_t:s0:c1,c2",
			"u:object_r:container_file_t:s0:c1,c2"},
		{[]string{"label:type:spc_t"}, "system_u:system_r:spc_t:s0", "system_u:object_r:container_file_t:s0"},
	}
	for _, c := range cases {
		s := apply(t, withSELinux(&TaskConfig{SecurityOpt: c.opts}))
		must.Eq(t, c.process, s.Process.SelinuxLabel)
		must.Eq(t, c.mount, s.Linux.MountLabel)
	}
	labelled, err := parseSecurityOptions([]string{"label=type:svirt_t"})
	must.NoError(t, err)
	must.NoError(t, labelled.label.check(true))
	must.Error(t, labelled.label.check(false))
}
