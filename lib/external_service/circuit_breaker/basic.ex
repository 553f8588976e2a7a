defmodule ExternalService.CircuitBreaker.Basic do
  # Gives permits and states to a backend that has only the required callbacks of `ExternalService.CircuitBreaker`, so
  # that the pipeline knows one kind of breaker. The config is `{backend, its config}`.
  @moduledoc false

  def ask(service, {backend, config}), do: backend.ask(service, config)
  def melt(service, {backend, config}), do: backend.melt(service, config)
  def reset(service, {backend, config}), do: backend.reset(service, config)
  def remove(service, {backend, config}), do: backend.remove(service, config)

  def admit(service, {backend, config}) do
    case backend.ask(service, config) do
      :ok -> {:ok, 0}
      :blown -> {:open, nil}
    end
  end

  def report(service, {backend, config}, _permit, :failure, _duration), do: backend.melt(service, config)
  def report(_service, _config, _permit, _outcome, _duration), do: :ok

  def look(service, {backend, config}) do
    case backend.ask(service, config) do
      :ok -> %{state: :closed, retry_after: 0}
      :blown -> %{state: :open, retry_after: nil}
    end
  end
end
