// Command csiplugin is a CSI plugin for tests: the Nomad agent runs it as a task, and its volumes are directories of that task's.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: csiplugin SOCKET DIRECTORY")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers at a Unix socket. Volumes are directories in dir.
func serve(socket, dir string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{})
	csi.RegisterNodeServer(server, node{dir: dir})
	return server.Serve(listener)
}

type identity struct {
	csi.UnimplementedIdentityServer
}

// GetPluginInfo implements csi.IdentityServer.
func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "directories.test", VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements csi.IdentityServer.
func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

type node struct {
	csi.UnimplementedNodeServer
	dir string
}

// NodeGetInfo implements csi.NodeServer.
func (node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer: it mounts the volume's directory where the agent shows it to a task.
func (n node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	volume := filepath.Join(n.dir, filepath.Base(r.GetVolumeId()))
	if err := errors.Join(os.MkdirAll(volume, 0o755), os.MkdirAll(r.GetTargetPath(), 0o755)); err != nil {
		return nil, err
	}
	err := unix.Mount(volume, r.GetTargetPath(), "", unix.MS_BIND, "")
	if err == nil && r.GetReadonly() {
		err = unix.Mount("", r.GetTargetPath(), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s at %s: %w", volume, r.GetTargetPath(), err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := unix.Unmount(r.GetTargetPath(), unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("unmount %s: %w", r.GetTargetPath(), err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.GetTargetPath())
}
