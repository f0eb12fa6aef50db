package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/s3blob" // s3://
	"gocloud.dev/gcp"
	googleauth "golang.org/x/oauth2/google"
	"google.golang.org/api/option"
)

// openBucket opens the bucket at a URL of gocloud.dev/blob, with a client that bounds what the
// cloud answers. The openers of gocloud.dev take no client, so each cloud's is made here, with the
// same credentials and parameters.
func openBucket(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	switch u.Scheme {
	case "gs":
		return openGoogle(ctx, u)
	case "azblob":
		return openAzure(ctx, u)
	}
	b, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, err
	}
	var client *s3.Client
	if !b.As(&client) {
		return nil, errors.Join(errors.New("the bucket of S3 has no client"), b.Close())
	}
	// The bucket keeps its pointer, so that it uses the client with the other options from now on.
	options := client.Options()
	options.HTTPClient = boundedReader(options.HTTPClient.Do)
	*client = *s3.New(options)
	return b, nil
}

func openGoogle(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	q := u.Query()
	for _, name := range []string{"grpc", "zonal"} {
		if q.Has(name) {
			return nil, fmt.Errorf("parameter %s: Muster reads Google's buckets over HTTP alone",
				name)
		}
	}
	transport := boundedReader(gcp.DefaultTransport().RoundTrip)
	opener := &gcsblob.URLOpener{Client: gcp.NewAnonymousHTTPClient(transport)}
	anonymous, err := strconv.ParseBool(cmp.Or(q.Get("anonymous"), "false"))
	if err != nil {
		return nil, fmt.Errorf("parameter anonymous: %w", err)
	}
	anonymous = anonymous || q.Get("access_id") == "-"
	q.Del("anonymous") // with these the opener would make another client
	q.Del("access_id")
	u.RawQuery = q.Encode()
	if os.Getenv("STORAGE_EMULATOR_HOST") != "" { // the library takes another client, but for this
		opener.Options.ClientOptions = append(opener.Options.ClientOptions,
			option.WithHTTPClient(&opener.Client.Client))
	} else if !anonymous {
		creds, err := gcp.DefaultCredentialsWithParams(ctx,
			googleauth.CredentialsParams{UniverseDomain: q.Get("universe_domain")})
		if err != nil {
			return nil, err
		}
		if domain, err := creds.GetUniverseDomain(); err == nil && domain != "" {
			opener.Options.ClientOptions = append(opener.Options.ClientOptions,
				option.WithUniverseDomain(domain))
		}
		if opener.Client, err = gcp.NewHTTPClient(transport, creds.TokenSource); err != nil {
			return nil, err
		}
	}
	return opener.OpenBucketURL(ctx, u)
}

func openAzure(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	opener := &azureblob.URLOpener{
		MakeClient: azureClient, ServiceURLOptions: *azureblob.NewDefaultServiceURLOptions(),
	}
	return opener.OpenBucketURL(ctx, u)
}

// azureClient makes the client of a container, with the credentials that the environment names.
func azureClient(service azureblob.ServiceURL, name azureblob.ContainerName) (*container.Client,
	error) {
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: boundedReader(http.DefaultClient.Do),
	}}
	at, err := url.JoinPath(string(service), string(name))
	if err != nil {
		return nil, err
	}
	account, key := os.Getenv("AZURE_STORAGE_ACCOUNT"), os.Getenv("AZURE_STORAGE_KEY")
	connection := cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"),
		os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
	switch {
	case account != "" && key != "":
		shared, err := azblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(at, shared, options)
	case os.Getenv("AZURE_STORAGE_SAS_TOKEN") != "":
		if err := sameOrigin(service); err != nil {
			return nil, err
		}
		return container.NewClientWithNoCredential(at, options)
	case connection != "":
		return container.NewClientFromConnectionString(connection, string(name), options)
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return container.NewClient(at, credential, options)
}

// sameOrigin returns an error if the parameters of a URL lead to another server than the
// environment names: the token of the environment is a part of the URL, and is for that server
// alone.
func sameOrigin(service azureblob.ServiceURL) error {
	own, err := azureblob.NewServiceURL(azureblob.NewDefaultServiceURLOptions())
	if err != nil {
		return err
	}
	want, err := url.Parse(string(own))
	if err != nil {
		return err
	}
	got, err := url.Parse(string(service))
	if err != nil {
		return err
	}
	if !strings.EqualFold(got.Scheme+"://"+got.Host, want.Scheme+"://"+want.Host) {
		return fmt.Errorf("the URL's parameters lead to %s, AZURE_STORAGE_SAS_TOKEN is for %s",
			got.Host, want.Host)
	}
	return nil
}
