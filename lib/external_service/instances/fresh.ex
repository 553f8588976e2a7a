defmodule ExternalService.Instances.Fresh do
  # The breaker of an instance that has seen no failure yet: closed, and nothing behind it. The first failure, or a hand,
  # makes the instance, and its breaker hears of it. The config is a function that does so, or gives `nil` where the service
  # has become another one.
  @moduledoc false

  def ask(_service, _make), do: :ok
  def admit(_service, _make), do: {:ok, 0}

  def report(service, make, _permit, :failure, _duration), do: melt(service, make)
  def report(_service, _make, _permit, _outcome, _duration), do: :ok

  def melt(service, make) do
    made(make, :melt, service, [])
    :ok
  end

  def reset(_service, _make), do: :ok
  def close(_service, _make), do: :ok
  def remove(_service, _make), do: :ok

  def open(service, make, options), do: made(make, :open, service, [options])
  def bypass(service, make), do: made(make, :bypass, service, [])
  def look(_service, _make), do: %{state: :closed, retry_after: 0}

  defp made(make, function, service, arguments) do
    with %{breaker: {backend, config}} <- make.(),
         true <- Code.ensure_loaded?(backend) and function_exported?(backend, function, length(arguments) + 2) do
      apply(backend, function, [service, config | arguments])
    else
      _nothing -> {:error, :not_found}
    end
  end
end
