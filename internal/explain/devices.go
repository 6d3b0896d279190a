package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/nodestats"
)

// Device is a device group of a node: in slice mode a GPU, and its slices are what is counted.
type Device struct {
	Node string `json:"node"`
	// Name is vendor/type/name.
	Name  string `json:"name"`
	Total int    `json:"total"`
	// Free is the largest block that a device block can get now: healthy, and with no allocation.
	Free int `json:"free"`
	// Used are those of allocations, by job, and Unhealthy those of no allocation that are not healthy, by reason.
	Used      []Use `json:"used"`
	Unhealthy []Use `json:"unhealthy"`
}

// Use is a number of devices, and who has them or why nobody gets them.
type Use struct {
	By    string `json:"by"`
	Count int    `json:"count"`
}

// matches reports whether a device block's name is one of the device's: its type, vendor/type, or vendor/type/name.
func (d *Device) matches(request string) bool {
	own := strings.SplitN(d.Name, "/", 3)
	switch asked := strings.SplitN(request, "/", 3); len(asked) {
	case 1:
		return own[1] == asked[0]
	case 2:
		return own[0] == asked[0] && own[1] == asked[1]
	default:
		return d.Name == request
	}
}

// Inventory is what a cluster has, and who has what of it.
type Inventory struct {
	Nodes       []*api.NodeListStub
	Allocations []*api.AllocationListStub
	// Statistics are those of the nodes, by ID, from which it is known which devices other allocations have; nil if there are none.
	Statistics map[string]*nodestats.Node
}

// takeInventory queries Nomad for all that a token may see, and nodes for which devices of the groups others have.
func takeInventory(ctx context.Context, client *api.Client, groups []Group) (*Inventory, error) {
	withResources := map[string]string{"resources": "true"}
	nodes, _, err := client.Nodes().List((&api.QueryOptions{Params: withResources}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list Nomad's nodes: %w", err)
	}
	allocs, _, err := client.Allocations().List((&api.QueryOptions{Namespace: api.AllNamespacesNamespace, Params: withResources}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list Nomad's allocations: %w", err)
	}
	i := &Inventory{Nodes: nodes, Allocations: allocs}
	if !seesAll(ctx, client) {
		i.takeStatistics(ctx, client, groups)
	}
	return i, nil
}

// seesAll reports whether a client may see all allocations: without ACLs, or with a management token.
func seesAll(ctx context.Context, client *api.Client) bool {
	token, _, err := client.ACLTokens().Self(new(api.QueryOptions).WithContext(ctx))
	var response api.UnexpectedResponseError
	if errors.As(err, &response) {
		return response.StatusCode() == http.StatusBadRequest // there are no tokens
	}
	return err == nil && token.Type == managementToken
}

// managementToken is the type of tokens with all rights.
const managementToken = "management"

// statisticsTimeout is how long a node may take for its statistics.
const statisticsTimeout = 5 * time.Second

// takeStatistics queries the nodes that have devices which the groups request.
func (i *Inventory) takeStatistics(ctx context.Context, client *api.Client, groups []Group) {
	nodes := slices.DeleteFunc(slices.Clone(i.Nodes), func(n *api.NodeListStub) bool {
		return n.NodeResources == nil || !slices.ContainsFunc(n.NodeResources.Devices, func(d *api.NodeDeviceResource) bool {
			return (&Device{Name: d.ID()}).isRequested(groups)
		})
	})
	i.Statistics = make(map[string]*nodestats.Node)
	var mu sync.Mutex
	nodestats.QueryAll(ctx, client, nodes, statisticsTimeout, func(id string, n *nodestats.Node) {
		mu.Lock()
		defer mu.Unlock()
		i.Statistics[id] = n
	})
}

// unseen says who has a device that no allocation has which the token may see; "" if nobody.
func unseen(known *nodestats.Node, device string) string {
	switch {
	case known == nil || known.Err != nil:
		return "not known"
	case known.Devices[device].Claimed():
		return "allocations that the token may not see"
	}
	return ""
}

// devices lists the device groups of all nodes that a request of the groups names.
func (i *Inventory) devices(groups []Group) []Device {
	used := usedDevices(i.Allocations)
	found := []Device{}
	for _, node := range i.Nodes {
		if node.NodeResources == nil || node.Status == api.NodeStatusDown {
			continue
		}
		for _, group := range node.NodeResources.Devices {
			if (&Device{Name: group.ID()}).isRequested(groups) {
				found = append(found, i.newDevice(node, group, used))
			}
		}
	}
	slices.SortFunc(found, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) })
	return found
}

// names lists what device blocks may request on the nodes, by vendor and type.
func (i *Inventory) names() []string {
	names := map[string]bool{}
	for _, node := range i.Nodes {
		if node.NodeResources == nil || node.Status == api.NodeStatusDown {
			continue
		}
		for _, group := range node.NodeResources.Devices {
			names[group.Vendor+"/"+group.Type] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (d *Device) isRequested(groups []Group) bool {
	return slices.ContainsFunc(groups, func(g Group) bool {
		return slices.ContainsFunc(g.Requests, func(r Request) bool { return d.matches(r.Device) })
	})
}

// place is a device on a node: IDs are unique on their node only.
type place struct{ node, device string }

// usedDevices says which job has each device that an allocation has which is not over.
func usedDevices(allocs []*api.AllocationListStub) map[place]string {
	used := map[place]string{}
	for _, alloc := range allocs {
		if alloc.AllocatedResources == nil || over(alloc) {
			continue
		}
		job := alloc.JobID
		if alloc.Namespace != api.DefaultNamespace {
			job += " in namespace " + alloc.Namespace
		}
		for _, task := range alloc.AllocatedResources.Tasks {
			for _, device := range task.Devices {
				for _, id := range device.DeviceIDs {
					used[place{alloc.NodeID, id}] = job
				}
			}
		}
	}
	return used
}

// over reports whether an allocation holds nothing any more.
func over(alloc *api.AllocationListStub) bool {
	switch alloc.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

func (i *Inventory) newDevice(node *api.NodeListStub, group *api.NodeDeviceResource, used map[place]string) Device {
	d := Device{Node: node.Name, Name: group.ID(), Total: len(group.Instances)}
	jobs, problems := map[string]int{}, map[string]int{}
	for _, instance := range group.Instances {
		by := used[place{node.ID, instance.ID}]
		if by == "" && instance.Healthy && i.Statistics != nil {
			by = unseen(i.Statistics[node.ID], instance.ID)
		}
		switch {
		case by != "":
			jobs[by]++
		case !instance.Healthy:
			problems[cmp.Or(instance.HealthDescription, "unhealthy")]++
		default:
			d.Free++
		}
	}
	d.Used, d.Unhealthy = uses(jobs), uses(problems)
	return d
}

// uses sorts the largest first.
func uses(counts map[string]int) []Use {
	all := []Use{}
	for _, by := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, Use{by, counts[by]})
	}
	slices.SortStableFunc(all, func(a, b Use) int { return cmp.Compare(b.Count, a.Count) })
	return all
}
