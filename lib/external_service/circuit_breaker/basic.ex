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
      :ok -> {:ok, nil}
      :blown -> {:open, nil}
    end
  end

  def report(service, {backend, config}, _permit, :failure), do: backend.melt(service, config)

  def state(service, {backend, config}) do
    case backend.ask(service, config) do
      :ok -> :closed
      :blown -> :open
    end
  end
end
