defmodule ExternalService.Documents do
  @moduledoc false
  # The Markdown documents, read for the tests that run their examples.

  @spec elixir_blocks(Path.t()) :: [String.t()]
  def elixir_blocks(path) do
    for [_, block] <- Regex.scan(~r/^```elixir\n(.*?)^```/ms, File.read!(path)), do: block
  end

  # Fences end examples here; doctest ends them at blank lines.
  @spec examples(Path.t()) :: String.t()
  def examples(path), do: path |> File.read!() |> String.replace(~r/^```.*$/m, "")
end

defmodule ExternalService.Documents.Readme do
  @external_resource "README.md"
  @moduledoc ExternalService.Documents.examples("README.md")
end

defmodule ExternalService.Documents.UsageRules do
  @external_resource "usage-rules.md"
  @moduledoc ExternalService.Documents.examples("usage-rules.md")
end

defmodule ExternalService.Documents.CircuitBreakers do
  @external_resource "guides/circuit-breakers.md"
  @moduledoc ExternalService.Documents.examples("guides/circuit-breakers.md")
end

defmodule ExternalService.Documents.Retries do
  @external_resource "guides/retries.md"
  @moduledoc ExternalService.Documents.examples("guides/retries.md")
end

defmodule ExternalService.Documents.Time do
  @external_resource "guides/time.md"
  @moduledoc ExternalService.Documents.examples("guides/time.md")
end

defmodule ExternalService.Documents.Fallback do
  @external_resource "guides/fallback.md"
  @moduledoc ExternalService.Documents.examples("guides/fallback.md")
end

defmodule ExternalService.Documents.Migrating do
  @external_resource "guides/migrating.md"
  @moduledoc ExternalService.Documents.examples("guides/migrating.md")
end

defmodule ExternalService.Documents.Testing do
  @external_resource "guides/testing.md"
  @moduledoc ExternalService.Documents.examples("guides/testing.md")
end

defmodule ExternalService.Documents.Telemetry do
  @external_resource "guides/telemetry.md"
  @moduledoc ExternalService.Documents.examples("guides/telemetry.md")
end

defmodule ExternalService.Documents.Endpoints do
  @external_resource "guides/endpoints.md"
  @moduledoc ExternalService.Documents.examples("guides/endpoints.md")
end

defmodule ExternalService.Documents.Moleculer do
  @external_resource "guides/moleculer.md"
  @moduledoc ExternalService.Documents.examples("guides/moleculer.md")
end
