package edit

import (
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// restricted returns the edits without the files of other capabilities than the requested ones, and without links to them.
func restricted(edits *cdi.ContainerEdits, asked capabilities, limited bool) *cdi.ContainerEdits {
	only := *edits.ContainerEdits
	only.DeviceNodes = slices.DeleteFunc(slices.Clone(edits.DeviceNodes), func(n *cdispecs.DeviceNode) bool {
		return capabilitiesOf(n.Path)&asked == 0
	})
	only.Mounts = slices.DeleteFunc(slices.Clone(edits.Mounts), func(m *cdispecs.Mount) bool {
		return capabilitiesOf(m.ContainerPath)&asked == 0 || is32Bit(m.HostPath) && !wants32Bit(m, asked, limited)
	})
	only.Hooks = nil
	for _, hook := range edits.Hooks {
		if hook := restrictedHook(hook, asked); hook != nil {
			only.Hooks = append(only.Hooks, hook)
		}
	}
	return &cdi.ContainerEdits{ContainerEdits: &only}
}

// wants32Bit reports whether a container gets a 32-bit library. With a limit it gets none that needs a shadow: there is no
// shadow for 32-bit programs, so they would have no limit.
func wants32Bit(mount *cdispecs.Mount, asked capabilities, limited bool) bool {
	return asked&compat32 != 0 && (!limited || shadow.SONAME(mount.ContainerPath) == "")
}

// The flags of NVIDIA's hooks that name a file, each followed by its value.
const (
	linkFlag = "--link" // TARGET::LINK
	pathFlag = "--path"
)

// restrictedHook returns a hook without the arguments for files of other capabilities, or nil if no file is left.
func restrictedHook(hook *cdispecs.Hook, asked capabilities) *cdispecs.Hook {
	if slices.Contains(hook.Args, "update-application-profile") && asked&graphics == 0 {
		return nil
	}
	var args []string
	dropped, kept := 0, 0
	for i := 0; i < len(hook.Args); i++ {
		flag := hook.Args[i]
		if (flag != linkFlag && flag != pathFlag) || i+1 == len(hook.Args) {
			args = append(args, flag)
			continue
		}
		i++
		if capabilitiesOf(namedFile(hook.Args[i]))&asked == 0 {
			dropped++
			continue
		}
		kept++
		args = append(args, flag, hook.Args[i])
	}
	if dropped > 0 && kept == 0 {
		return nil
	}
	only := *hook
	only.Args = args
	return &only
}

// namedFile returns the file in a flag's value: of a link, the link itself.
func namedFile(value string) string {
	if _, link, ok := strings.Cut(value, "::"); ok {
		return link
	}
	return value
}
