// Command cluster is every component of Kubernetes that the tests need, as one program: linking one
// is cheaper than linking five. Its first argument says which it is.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	node "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat"
	pod "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
)

func main() {
	var command *cobra.Command
	if os.Args = os.Args[1:]; len(os.Args) == 0 {
		os.Args = []string{""}
	}
	switch os.Args[0] {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = manager.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kube-proxy":
		command = proxy.NewProxyCommand()
	case "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	case "kwok":
		command = newKwok()
	case "stages": // what kwok makes of nodes and pods; without them it does not start
		fmt.Println(strings.Join([]string{
			node.DefaultNodeInit, heartbeat.DefaultNodeHeartbeat, pod.DefaultPodReady,
			pod.DefaultPodComplete, pod.DefaultPodDelete,
		}, "\n---\n"))
		return
	default:
		fmt.Fprintln(os.Stderr, "cluster: which? etcd, kube-apiserver, kube-controller-manager, "+
			"kube-scheduler, kube-proxy, kubelet, kwok or stages")
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

// newKwok returns kwok's command, which reads --config before it parses its own flags.
func newKwok() *cobra.Command {
	early := pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	early.ParseErrorsAllowlist.UnknownFlags = true
	ctx, _ := log.InitFlags(context.Background(), early)
	ctx, err := config.InitFlags(ctx, early)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
	command := kwok.NewCommand(ctx)
	command.Version = "" // its flag is taken by the others'
	command.SetContext(ctx)
	command.PersistentFlags().AddFlagSet(early)
	return command
}
