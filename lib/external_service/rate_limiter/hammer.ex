defmodule ExternalService.RateLimiter.Hammer do
  @moduledoc """
  A rate limit that is counted by a rate limiter of the `:hammer` library (version 7), for example over several nodes.

      defmodule MyApp.RateLimit do
        use Hammer, backend: Hammer.Redis
      end

      use ExternalService,
        rate_limit: [limit: 100, per: 1_000, backend: {ExternalService.RateLimiter.Hammer, module: MyApp.RateLimit}]

  The module has to be running when calls are made: put it under a supervisor, before the services.

  Such a limiter can not book ahead. A call that has to wait sleeps and asks again, every call costs one, and a call that
  the concurrency limit refuses has spent its share. It follows the machine's clock, whatever `:clock` the service has.

  ## Options

    * `:module` - the module that uses `Hammer`. Required.
    * `:key` - the key that the calls are counted under. Default: `default_key/1`. Services with the same key, `:limit` and
      `:per` share a limit.

  `ExternalService.rate_limited?/1` needs the module's `get/2`, and without it says `false`; a reset needs `set/3`, and
  without it does nothing. Hammer's counting algorithms have both.
  """

  @behaviour ExternalService.RateLimiter

  @doc """
  Returns the key that a service's calls are counted under if no other is given.

      iex> ExternalService.RateLimiter.Hammer.default_key(:geocoder)
      "external_service/:geocoder"
  """
  @spec default_key(ExternalService.service()) :: String.t()
  def default_key(service), do: "external_service/" <> inspect(service)

  @impl true
  def init(service, options) do
    config = %{
      module: module!(options),
      key: Keyword.get_lazy(options, :key, fn -> default_key(service) end),
      limit: options[:limit],
      per: options[:per]
    }

    {:ok, config}
  end

  @impl true
  def check(_service, %{module: module, key: key, per: per, limit: limit}) do
    case module.hit(key, per, limit) do
      {:allow, _count} -> :ok
      {:deny, ms} -> {:wait, max(ms, 1)}
    end
  end

  @impl true
  def peek(_service, %{module: module, key: key, per: per, limit: limit} = config) do
    if function_exported?(module, :get, 2) and module.get(key, per) >= limit,
      do: {:wait, max(wait(config), 1)},
      else: :ok
  end

  # An algorithm without windows does not tell their end, and one that has not begun has none.
  defp wait(%{module: module, key: key, per: per} = config) do
    case function_exported?(module, :expires_at, 2) && module.expires_at(key, per) do
      unknown when unknown in [false, 0] -> share(config)
      expires_at -> expires_at - System.system_time(:millisecond)
    end
  end

  defp share(%{per: per, limit: limit}), do: ceil(per / max(limit, 1))

  @impl true
  def reset(_service, %{module: module, key: key, per: per}) do
    if function_exported?(module, :set, 3), do: module.set(key, per, 0)
    :ok
  end

  defp module!(options) do
    case Keyword.fetch(options, :module) do
      {:ok, module} -> if limiter?(module), do: module, else: refuse!("expects :module to be #{expected(module)}")
      :error -> refuse!("requires a :module option naming the Hammer rate limiter module, as in #{example()}")
    end
  end

  defp limiter?(module),
    do: is_atom(module) and module not in [nil, true, false] and exports_hit?(module)

  defp exports_hit?(module), do: Code.ensure_loaded?(module) and function_exported?(module, :hit, 3)

  defp expected(module), do: "a Hammer rate limiter module, got: #{inspect(module)}"

  defp example, do: "`backend: {#{inspect(__MODULE__)}, module: MyApp.RateLimit}`"

  @spec refuse!(String.t()) :: no_return()
  defp refuse!(message), do: raise(ArgumentError, "#{inspect(__MODULE__)} " <> message)
end
