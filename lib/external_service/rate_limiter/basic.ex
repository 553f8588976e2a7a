defmodule ExternalService.RateLimiter.Basic do
  # Gives reservations to a backend that has only the required callbacks of `ExternalService.RateLimiter`, so that the
  # pipeline knows one kind of limiter. The config is `{backend, its config}`.
  @moduledoc false

  def peek(service, {backend, config}), do: backend.peek(service, config)
  def reset(service, {backend, config}), do: backend.reset(service, config)

  def reserve(service, {backend, config}, _cost, wait) do
    case backend.check(service, config) do
      :ok -> {:ok, nil}
      {:wait, ms} when is_integer(wait) and ms <= wait -> {:again, ms}
      {:wait, ms} when wait == :infinity -> {:again, ms}
      {:wait, ms} -> {:refused, ms}
    end
  end

  # It has taken one, and has no way to take it back.
  def give_back(_service, _config, _cost, _place), do: :ok
end
