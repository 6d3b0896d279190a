// Command criclient runs a container through containerd's CRI, as a kubelet does for a pod of a runtime class:
//
//	criclient run ADDRESS DIR SPEC   runs what the file SPEC (JSON) says, copies its output, ends with its exit code
//	criclient stop ADDRESS NAME      has a container end by SIGTERM
//
// SPEC has name, handler (that of the runtime class), image, command, env (NAME=VALUE), annotations and devices (CDI). DIR
// takes the log.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type container struct {
	Name, Handler, Image string
	Command, Env         []string
	Annotations          map[string]string
	Devices              []string
}

func main() {
	code, err := run(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "criclient:", err)
		code = 125
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	if len(args) < 3 {
		return 0, errors.New("usage: criclient run ADDRESS DIR SPEC, or criclient stop ADDRESS NAME")
	}
	conn, err := grpc.NewClient("unix://"+args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	if args[0] == "stop" {
		return 0, stop(ctx, client, args[2])
	}
	text, err := os.ReadFile(args[3])
	if err != nil {
		return 0, err
	}
	var c container
	if err := json.Unmarshal(text, &c); err != nil {
		return 0, err
	}
	return runPod(ctx, client, args[2], c)
}

// stop finds the container by its label, as a kubelet finds its own.
func stop(ctx context.Context, client cri.RuntimeServiceClient, name string) error {
	list, err := client.ListContainers(ctx, &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"name": name}},
	})
	if err != nil {
		return err
	}
	for _, c := range list.Containers {
		if _, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id, Timeout: 30}); err != nil {
			return err
		}
	}
	return nil
}

// runPod runs the container in a pod of its own, in the host's network.
func runPod(ctx context.Context, client cri.RuntimeServiceClient, dir string, c container) (code int, err error) {
	pod := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: c.Name, Uid: c.Name, Namespace: "test"},
		LogDirectory: dir,
		// As a kubelet asks for unless a pod says otherwise: its containers have a PID namespace each.
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
	sandbox, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod, RuntimeHandler: c.Handler})
	if err != nil {
		return 0, fmt.Errorf("run the pod: %w", err)
	}
	defer func() {
		_, removeErr := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId})
		err = errors.Join(err, removeErr)
	}()
	config := c.config()
	created, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, Config: config, SandboxConfig: pod,
	})
	if err != nil {
		return 0, fmt.Errorf("create the container: %w", err)
	}
	copied, err := copyLog(filepath.Join(dir, config.LogPath))
	if err != nil {
		return 0, err
	}
	if _, err := client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		return 0, fmt.Errorf("start the container: %w", err)
	}
	if err := <-copied; err != nil {
		return 0, err
	}
	return exitCode(ctx, client, created.ContainerId)
}

func (c container) config() *cri.ContainerConfig {
	config := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: c.Name},
		Image:       &cri.ImageSpec{Image: c.Image},
		Command:     c.Command,
		Labels:      map[string]string{"name": c.Name},
		Annotations: c.Annotations,
		LogPath:     c.Name + ".log",
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		config.Envs = append(config.Envs, &cri.KeyValue{Key: name, Value: []byte(value)})
	}
	for _, device := range c.Devices {
		config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: device})
	}
	return config
}

// copyLog makes the container's log a pipe, and copies what comes to the standard output until its writer closes it. A line
// has its time, its stream and a letter before it.
func copyLog(file string) (<-chan error, error) {
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		return nil, fmt.Errorf("make a pipe for the log: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		log, err := os.Open(file) // It waits for the writer.
		if err != nil {
			done <- err
			return
		}
		defer os.Remove(file)
		defer log.Close()
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			if fields := strings.SplitN(lines.Text(), " ", 4); len(fields) == 4 {
				fmt.Println(fields[3])
			}
		}
		done <- lines.Err()
	}()
	return done, nil
}

// exitCode asks until the container has ended, which it has as good as: its output is closed. The first containerd with CRI
// events is 1.7.
func exitCode(ctx context.Context, client cri.RuntimeServiceClient, id string) (int, error) {
	for {
		answer, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return 0, err
		}
		if answer.Status.State == cri.ContainerState_CONTAINER_EXITED {
			return int(answer.Status.ExitCode), nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}
