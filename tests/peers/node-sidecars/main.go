// Stand-ins for the two sidecars of a node plugin that the Go module proxy does not serve: the chart starts them
// with the arguments of node-driver-registrar and livenessprobe. The protocols are the real ones, kubelet's and CSI's
// own packages.
//
//	node-sidecars registrar --csi-address= --kubelet-registration-path= --http-endpoint=
//	node-sidecars livenessprobe --csi-address= --http-endpoint=
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Where the chart mounts kubelet's folder of registration sockets.
const registrationFolder = "/registration"

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: node-sidecars registrar|livenessprobe OPTIONS")
	}
	options := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	address := options.String("csi-address", "", "the driver's socket")
	endpoint := options.String("http-endpoint", "", "where /healthz is served")
	registrationPath := options.String("kubelet-registration-path", "", "the driver's socket as kubelet finds it")
	options.Parse(os.Args[2:])

	connection, err := grpc.NewClient("unix://"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	driver := csi.NewIdentityClient(connection)
	switch os.Args[1] {
	case "registrar":
		register(name(driver), *registrationPath, *endpoint)
	case "livenessprobe":
		name(driver)
		http.HandleFunc("/healthz", func(answer http.ResponseWriter, request *http.Request) {
			probe(driver, answer, request)
		})
		log.Fatal(http.ListenAndServe(*endpoint, nil))
	default:
		log.Fatalf("no sidecar %q", os.Args[1])
	}
}

// name waits for the driver, as both sidecars do.
func name(driver csi.IdentityClient) string {
	info, err := driver.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		log.Fatalf("GetPluginInfo: %v", err)
	}
	return info.Name
}

func probe(driver csi.IdentityClient, answer http.ResponseWriter, request *http.Request) {
	ctx, cancel := context.WithTimeout(request.Context(), 3*time.Second)
	defer cancel()
	result, err := driver.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		http.Error(answer, err.Error(), http.StatusInternalServerError)
	} else if result.Ready != nil && !result.Ready.Value {
		http.Error(answer, "the driver is not ready", http.StatusInternalServerError)
	}
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	driver   string
	endpoint string
}

func (one registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              one.driver,
		Endpoint:          one.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus ends the program after a refusal: kubelet tries again with the socket that its successor makes.
func (one registrar) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	log.Printf("kubelet says: %v", status)
	if !status.PluginRegistered {
		log.Fatalf("the registration failed: %s", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func register(driver, endpoint, health string) {
	socket := filepath.Join(registrationFolder, driver+"-reg.sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	syscall.Umask(0o077)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, registrar{driver: driver, endpoint: endpoint})
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(socket); err != nil {
			http.Error(answer, fmt.Sprint(err), http.StatusInternalServerError)
		}
	})
	go func() { log.Fatal(http.ListenAndServe(health, nil)) }()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		// Its socket goes along: kubelet forgets the driver.
		server.Stop()
	}()
	log.Fatal(server.Serve(listener))
}
